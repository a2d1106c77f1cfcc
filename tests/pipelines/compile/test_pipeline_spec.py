import pytest
from google.protobuf import json_format

from detloom.pipelines.compile.pipeline_spec import check_spec, containers_of, executor_labels_of, tasks_of


def make_spec():
    """Return the spec of Read, followed by a DAG with Find."""
    return {
        "components": {
            "Read": {"executorLabel": "read", "outputDefinitions": {"artifacts": {"data": {}}}},
            "Inner": {
                "dag": {"tasks": {"Find": {"componentRef": {"name": "Find"}}}},
                "inputDefinitions": {"artifacts": {"data": {}}},
            },
            "Find": {"executorLabel": "find"},
        },
        "deploymentSpec": {"executors": {"read": {"container": {"image": "i"}}, "find": {"importer": {}}}},
        "pipelineInfo": {"name": "p"},
        "root": {
            "dag": {
                "tasks": {
                    "Read": {"componentRef": {"name": "Read"}},
                    "Inner": {
                        "componentRef": {"name": "Inner"},
                        "dependentTasks": ["Read"],
                        "inputs": {
                            "artifacts": {
                                "data": {"taskOutputArtifact": {"producerTask": "Read", "outputArtifactKey": "data"}}
                            }
                        },
                    },
                }
            }
        },
    }


def test_tasks_are_found_at_every_depth_and_containers_by_their_component():
    spec = make_spec()
    assert list(tasks_of(spec)) == ["Read", "Inner", "Find"]
    assert containers_of(spec) == {"Read": {"image": "i"}}
    assert executor_labels_of(spec) == {"Read": "read"}
    check_spec(spec)


def test_an_unknown_field_is_detected():
    spec = make_spec()
    spec["root"]["dag"]["tasks"]["Read"]["retries"] = 3
    with pytest.raises(json_format.ParseError, match="retries"):
        check_spec(spec)


@pytest.mark.parametrize(
    "break_spec",
    [
        lambda tasks, spec: tasks["Inner"].update(dependentTasks=["Nobody"]),
        lambda tasks, spec: tasks["Inner"].pop("inputs"),
        lambda tasks, spec: spec["components"].update({"with_line": spec["components"]["Read"]}),
        lambda tasks, spec: spec["components"]["Read"].update(executorLabel="nothing"),
    ],
)
def test_broken_references_and_illegal_names_are_detected(break_spec):
    spec = make_spec()
    break_spec(spec["root"]["dag"]["tasks"], spec)
    with pytest.raises(AssertionError):
        check_spec(spec)
