import copy

from detloom.pipelines.compile.group_conditioned_tasks import group_conditioned_tasks

WANTED = "(inputs.artifacts['{}'].artifacts[0].metadata['train'] == 1.0)"
IMPLICIT = "_Decide.decision"


def artifact(producer, output):
    return {"taskOutputArtifact": {"producerTask": producer, "outputArtifactKey": output}}


def schema(title):
    return {"artifactType": {"instanceSchema": f"title: {title}"}}


def make_spec():
    """Return the spec of Read -> Decide -> (Find ->) Train -> Judge if it decides to train, otherwise Tell."""
    tasks = {
        "Read": {"componentRef": {"name": "Read"}},
        "Check": {"componentRef": {"name": "Check"}, "dependentTasks": ["Read"]},
        "Decide": {
            "componentRef": {"name": "Decide"},
            "dependentTasks": ["Read"],
            "inputs": {"artifacts": {"data": artifact("Read", "data")}},
        },
        "Find": {
            "componentRef": {"name": "Find"},
            "dependentTasks": ["Decide"],
            "inputs": {"artifacts": {IMPLICIT: artifact("Decide", "decision")}},
            "triggerPolicy": {"condition": WANTED.format(IMPLICIT)},
        },
        "Train": {
            "componentRef": {"name": "Train"},
            "dependentTasks": ["Check", "Decide", "Find", "Read"],
            "inputs": {
                "artifacts": {
                    "data": artifact("Read", "data"),
                    "start": artifact("Find", "model"),
                    IMPLICIT: artifact("Decide", "decision"),
                },
                "parameters": {"steps": {"runtimeValue": {"constant": 1.0}}},
            },
            "triggerPolicy": {"condition": WANTED.format(IMPLICIT)},
        },
        "Judge": {
            "componentRef": {"name": "Judge"},
            "dependentTasks": ["Decide", "Train"],
            "inputs": {"artifacts": {"model": artifact("Train", "model"), "why": artifact("Decide", "decision")}},
            "triggerPolicy": {"condition": WANTED.format("why")},
        },
        "Tell": {
            "componentRef": {"name": "Tell"},
            "dependentTasks": ["Decide"],
            "inputs": {"artifacts": {"why": artifact("Decide", "decision")}},
            # TFX writes negated conditions with a name that is not an input of the task
            "triggerPolicy": {"condition": f"!({WANTED.format(IMPLICIT)})"},
        },
    }
    components = {
        "Read": {"executorLabel": "read", "outputDefinitions": {"artifacts": {"data": schema("Data")}}},
        "Check": {"executorLabel": "check"},
        "Decide": {
            "executorLabel": "decide",
            "inputDefinitions": {"artifacts": {"data": schema("Data")}},
            "outputDefinitions": {"artifacts": {"decision": schema("Decision")}},
        },
        "Find": {
            "executorLabel": "find",
            "inputDefinitions": {"artifacts": {IMPLICIT: schema("Decision")}},
            "outputDefinitions": {"artifacts": {"model": schema("Model")}},
        },
        "Train": {
            "executorLabel": "train",
            "inputDefinitions": {
                "artifacts": {"data": schema("Data"), "start": schema("Model"), IMPLICIT: schema("Decision")}
            },
            "outputDefinitions": {"artifacts": {"model": schema("Model")}},
        },
        "Judge": {
            "executorLabel": "judge",
            "inputDefinitions": {"artifacts": {"model": schema("Model"), "why": schema("Decision")}},
        },
        "Tell": {"executorLabel": "tell", "inputDefinitions": {"artifacts": {"why": schema("Decision")}}},
    }
    labels = ("read", "check", "decide", "find", "train", "judge", "tell")
    return {
        "components": components,
        "deploymentSpec": {"executors": {label: {"container": {"image": "i"}} for label in labels}},
        "root": {"dag": {"tasks": tasks}},
    }


def test_tasks_with_one_condition_become_a_dag():
    spec = group_conditioned_tasks(make_spec())
    assert set(spec["root"]["dag"]["tasks"]) == {"Read", "Check", "Decide", "Tell", "training"}
    assert set(spec["components"]["training"]["dag"]["tasks"]) == {"Find", "Train", "Judge"}


def test_only_the_dag_has_the_condition_and_the_outer_dependencies():
    spec = group_conditioned_tasks(make_spec())
    dag = spec["root"]["dag"]["tasks"]["training"]
    assert dag["dependentTasks"] == ["Check", "Decide", "Read"]
    assert dag["triggerPolicy"] == {"condition": WANTED.format("Decide-decision")}
    inner = spec["components"]["training"]["dag"]["tasks"]
    assert all("triggerPolicy" not in task for task in inner.values())
    assert "dependentTasks" not in inner["Find"]
    assert inner["Train"]["dependentTasks"] == ["Find"]
    assert inner["Judge"]["dependentTasks"] == ["Train"]


def test_outer_sources_become_inputs_of_the_dag_with_one_name_each():
    spec = group_conditioned_tasks(make_spec())
    assert spec["root"]["dag"]["tasks"]["training"]["inputs"]["artifacts"] == {
        "Decide-decision": artifact("Decide", "decision"),
        "Read-data": artifact("Read", "data"),
    }
    assert spec["components"]["training"]["inputDefinitions"]["artifacts"] == {
        "Decide-decision": schema("Decision"),
        "Read-data": schema("Data"),
    }
    inner = spec["components"]["training"]["dag"]["tasks"]
    assert inner["Train"]["inputs"]["artifacts"] == {
        "data": {"componentInputArtifact": "Read-data"},
        "start": artifact("Find", "model"),
    }
    assert inner["Train"]["inputs"]["parameters"] == {"steps": {"runtimeValue": {"constant": 1.0}}}
    assert inner["Judge"]["inputs"]["artifacts"]["why"] == {"componentInputArtifact": "Decide-decision"}


def test_an_input_that_only_the_condition_needs_is_dropped():
    spec = group_conditioned_tasks(make_spec())
    assert set(spec["components"]["Train"]["inputDefinitions"]["artifacts"]) == {"data", "start"}
    assert set(spec["components"]["Judge"]["inputDefinitions"]["artifacts"]) == {"model", "why"}


def test_a_condition_on_a_single_task_refers_to_its_own_input():
    spec = group_conditioned_tasks(make_spec())
    assert spec["root"]["dag"]["tasks"]["Tell"]["triggerPolicy"] == {"condition": f"!({WANTED.format('why')})"}


def test_tasks_inside_the_dag_of_an_exit_handler_are_grouped():
    spec = make_spec()
    spec["components"]["tfx-dag"] = {"dag": spec["root"]["dag"]}
    spec["root"] = {"dag": {"tasks": {"tfx-dag": {"componentRef": {"name": "tfx-dag"}}}}}
    edited = group_conditioned_tasks(spec)
    assert set(edited["root"]["dag"]["tasks"]) == {"tfx-dag"}
    assert "training" in edited["components"]["tfx-dag"]["dag"]["tasks"]


def test_the_input_spec_is_not_changed_and_without_conditions_the_result_is_equal():
    spec = make_spec()
    before = copy.deepcopy(spec)
    group_conditioned_tasks(spec)
    assert spec == before
    for task in spec["root"]["dag"]["tasks"].values():
        task.pop("triggerPolicy", None)
    assert group_conditioned_tasks(spec) == spec
