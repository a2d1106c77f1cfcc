import pytest
from conformance_driver.retries import RECOMMENDED_DEFAULTS, STOCK_DEFAULTS, retry_rules
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2


def rules(backend, **policy):
    return retry_rules(json_format.ParseDict(policy, pipeline_spec_pb2.PipelineTaskSpec.RetryPolicy()), backend)


def test_waits_grow_by_the_factor():
    found = rules("kubeflow", maxRetryCount=3, backoffDuration="30s", backoffFactor=2, backoffMaxDuration="86400s")
    assert [found.next_wait(failures, 100) for failures in (1, 2, 3, 4)] == [30, 60, 120, None]


def test_on_kubeflow_the_maximum_duration_counts_from_the_first_try():
    found = rules("kubeflow", maxRetryCount=3, backoffDuration="30s", backoffMaxDuration="3600s")
    assert found.next_wait(1, 3500) == 30
    assert found.next_wait(1, 3590) is None  # 3590 + 30 > 3600


def test_on_kubeflow_nothing_is_retried_without_a_maximum_duration():
    assert rules("kubeflow", maxRetryCount=3, backoffDuration="30s").next_wait(1, 0.5) is None


def test_on_kubeflow_waits_do_not_grow_without_a_factor():
    found = rules("kubeflow", maxRetryCount=3, backoffDuration="30s", backoffMaxDuration="3600s")
    assert found.next_wait(3, 100) == 30


def test_on_vertex_the_factor_is_two_and_the_maximum_wait_one_hour():
    found = rules("vertex", maxRetryCount=9, backoffDuration="600s")
    assert [found.next_wait(failures, 0) for failures in (1, 2, 3, 4)] == [600, 1200, 2400, None]


@pytest.mark.parametrize("backend", ["kubeflow", "vertex"])
def test_without_a_policy_there_is_one_try(backend):
    assert rules(backend).next_wait(1, 0) is None


def retried_on_kubeflow(defaults, policy):
    """Return the number of tries after a failure by exit code, and after lost pods."""
    if policy is not None:
        policy = json_format.ParseDict(policy, pipeline_spec_pb2.PipelineTaskSpec.RetryPolicy())
    found = retry_rules(policy, "kubeflow", defaults)

    def tries(phase):
        return next(number for number in range(1, 9) if found.next_wait(number, 0, phase) is None)

    return tries("Failed"), tries("Error")


@pytest.mark.parametrize(
    ("defaults", "with_policy", "without_policy"),
    [
        ({}, (3, 1), (1, 1)),  # Kubeflow Pipelines 2.16.1
        (STOCK_DEFAULTS, (1, 3), (1, 3)),  # 2.17.0
        (RECOMMENDED_DEFAULTS, (3, 3), (1, 1)),
    ],
)
def test_argos_defaults_decide_what_is_retried(defaults, with_policy, without_policy):
    """These numbers were seen on a cluster."""
    policy = {"maxRetryCount": 2, "backoffDuration": "1s", "backoffMaxDuration": "3600s"}
    assert retried_on_kubeflow(defaults, policy) == with_policy
    assert retried_on_kubeflow(defaults, None) == without_policy
