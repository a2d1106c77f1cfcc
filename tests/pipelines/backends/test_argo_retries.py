import json

import pytest

from detloom.pipelines.backends.argo_retries import RECOMMENDED, parse_retry_defaults, retry_warning


@pytest.mark.parametrize("manifest", ["", "None", "{", "[]", "{}", json.dumps({"spec": {"templateDefaults": None}})])
def test_a_workflow_without_defaults_has_none(manifest):
    assert parse_retry_defaults(manifest) is None


def test_the_defaults_of_a_workflow_are_read():
    retry = {"limit": "2", "retryPolicy": "OnError"}
    assert parse_retry_defaults(json.dumps({"spec": {"templateDefaults": {"retryStrategy": retry}}})) == retry


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        (None, "no earlier run shows"),
        ({"limit": "2", "retryPolicy": "OnError"}, "OnError, a container that fails is not retried"),
        ({"limit": "2"}, "OnFailure, a task whose pod is deleted or preempted is not retried"),
    ],
)
def test_settings_that_lose_retries_are_reported_with_the_change(defaults, words):
    warning = retry_warning(defaults)
    assert words in warning
    assert RECOMMENDED in warning
    # retries everything
    assert retry_warning({"limit": "0", "retryPolicy": "Always"}) == ""
