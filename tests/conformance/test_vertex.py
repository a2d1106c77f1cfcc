import json
from dataclasses import replace

import pytest
from conformance_jobs import MODEL, ROOTS, Step, run_steps

TRAINER = Step(code="write('model', 'weights'); set_metadata('model', accuracy=0.5)", outputs={"model": MODEL})
PUSHER = Step(code="print(read('model'))", inputs={"model": "Trainer.model"})
BLESSING = "tfx.ModelBlessing"
BLESSED = f'schema_title="{BLESSING}" AND state=LIVE AND metadata.blessed.number_value=1'
BLESSED_MODEL = (
    f'schema_title="{MODEL}" AND state=LIVE AND '
    "name=\"{{$.inputs.artifacts['input'].metadata['current_model_id']}}\""
)


def log_of(result, task_name):
    return (result.logs / f"{result[task_name].tries[-1].pod}.log").read_text()


def test_vertex_artifacts_have_names_and_types_before_the_task_runs(machine):
    result = run_steps({"Trainer": TRAINER, "Pusher": PUSHER}, "vertex", machine)
    assert log_of(result, "Pusher") == "weights\n"
    (made,) = result["Trainer"].executor_input["outputs"]["artifacts"]["model"]["artifacts"]
    (taken,) = result["Pusher"].executor_input["inputs"]["artifacts"]["model"]["artifacts"]
    assert made["name"] == taken["name"]
    assert taken["name"].startswith("projects/123456789012/locations/us-central1/metadataStores/default/artifacts/")
    assert taken["type"] == {"instanceSchema": "title: tfx.Model\ntype: object\n"}
    assert taken["metadata"] == {"accuracy": 0.5}


def test_vertex_addresses_consist_of_root_project_job_task_number_output(machine):
    result = run_steps({"Trainer": TRAINER}, "vertex", machine)
    uri = result["Trainer"].outputs["model"][0].uri
    head, task, key = uri.rsplit("/", 2)
    assert head == f"{ROOTS['vertex']}/123456789012/{result.name.rpartition('/')[2]}"
    assert task.startswith("Trainer_")
    assert key == "model"
    assert result["Trainer"].executor_input["outputs"]["outputFile"] == f"{head}/{task}/executor_output.json"


def driver_of(span):
    """Return code that reports a span as ExampleGen's driver does, and leaves its result for the executor."""
    output = {
        "parameterValues": {"span": span},
        "artifacts": {"examples": {"artifacts": [{"metadata": {"span": span}}]}},
    }
    return f"output.update(json.loads({json.dumps(json.dumps(output))}))"


def generator(span):
    code = "print(parameter('span'), os.path.exists(local(executor_input['outputs']['outputFile'])))"
    return Step(code=code, driver=driver_of(span), outputs={"examples": "tfx.Examples"}, is_cached=True)


def test_the_driver_runs_before_the_cache_check_and_its_result_is_passed_on(machine):
    result = run_steps({"ExampleGen": generator(3)}, "vertex", machine)
    assert log_of(result, "ExampleGen") == "3 True\n"
    assert result["ExampleGen"].outputs["examples"][0].metadata == {"span": 3.0}


def test_the_result_of_the_driver_is_part_of_the_cache_key(machine, tmp_path):
    """The job is the same each time, because it does not contain the driver's result."""
    found = tmp_path / "span"
    driver = f"span = int(open({str(found)!r}).read()); output['parameterValues'] = {{'span': span}}"
    step = Step(code="print(parameter('span'))", driver=driver, outputs={"examples": "tfx.Examples"}, is_cached=True)
    states = []
    for span in (1, 1, 2):
        found.write_text(str(span))
        states.append(run_steps({"ExampleGen": step}, "vertex", machine)["ExampleGen"].state)
    assert states == ["SUCCEEDED", "CACHED", "SUCCEEDED"]


def test_a_failing_driver_fails_the_task(machine):
    step = replace(generator(1), driver="raise SystemExit(2)")
    result = run_steps({"ExampleGen": step}, "vertex", machine)
    assert result["ExampleGen"].state == "FAILED"
    assert [each.exit_code for each in result["ExampleGen"].tries] == [2]


RESOLVERS = {
    "blessing-resolver": Step(outputs={"blessing": BLESSING}, queries={"blessing": BLESSED}),
    "model-resolver": Step(
        inputs={"input": "blessing-resolver.blessing"}, outputs={"model": MODEL}, queries={"model": BLESSED_MODEL}
    ),
}


def evaluated(blessed):
    """Return a training task whose model is blessed or not, and a task that compares with the last blessed one."""
    bless = f"set_metadata('blessing', blessed={blessed}, current_model_id=artifact('inputs', 'model')['name'])"
    look = "print([a['name'] for a in executor_input['inputs']['artifacts']['model'].get('artifacts', [])])"
    steps = {
        "Trainer": TRAINER,
        **RESOLVERS,
        "Compare": Step(code=look, inputs={"model": "model-resolver.model"}),
        "Evaluator": Step(
            code=bless, inputs={"model": "Trainer.model"}, outputs={"blessing": BLESSING}, after=["Compare"]
        ),
    }
    return steps


def test_resolvers_find_the_newest_blessed_model_of_earlier_runs(machine, monkeypatch):
    monkeypatch.setattr("conformance_driver.check_job.ANY_TITLE", MODEL)  # hand-written inputs declare a Model
    first = run_steps(evaluated(1), "vertex", machine)
    second = run_steps(evaluated(0), "vertex", machine)
    third = run_steps(evaluated(1), "vertex", machine)
    model = first["Trainer"].outputs["model"][0].name
    assert log_of(first, "Compare") == "[]\n"
    assert log_of(second, "Compare") == f"['{model}']\n"
    assert log_of(third, "Compare") == f"['{model}']\n"  # the second model was not blessed


def test_an_unknown_query_fails_the_task(machine):
    step = Step(outputs={"model": MODEL}, queries={"model": 'uri="gs://x"'})
    assert "is not supported" in run_steps({"Resolver": step}, "vertex", machine)["Resolver"].error


def test_only_pipelines_with_the_same_name_share_the_cache(machine):
    steps = {"Trainer": replace(TRAINER, is_cached=True)}
    run_steps(steps, "vertex", machine)
    assert run_steps(steps, "vertex", machine)["Trainer"].state == "CACHED"


@pytest.mark.parametrize("train", [0, 1])
def test_a_condition_over_metadata_skips_a_dag(machine, train):
    decide = Step(code=f"set_metadata('decision', train={train})", outputs={"decision": MODEL})
    condition = "(inputs.artifacts['decision'].artifacts[0].metadata['train'] == 1.0)"
    dag = Step(inputs={"decision": "Decide.decision"}, condition=condition, tasks={"Trainer": TRAINER})
    result = run_steps({"Decide": decide, "training": dag}, "vertex", machine)
    assert result["training"].state == ("SUCCEEDED" if train else "SKIPPED")
    assert result.state == "SUCCEEDED"


def test_the_exit_handler_gets_the_error(machine):
    handler = Step(
        code="print(parameter('status'))", parameters={"status": "STATUS"}, after=["work"], is_exit_handler=True
    )
    steps = {"work": Step(tasks={"Trainer": Step(code="raise SystemExit(1)")}), "Notifier": handler}
    result = run_steps(steps, "vertex", machine)
    status = json.loads(log_of(result, "Notifier"))
    assert status["state"] == "FAILED"
    assert status["pipelineJobResourceName"] == result.name
    assert status["error"]["message"].endswith("The failed tasks are: [Trainer].")


def test_a_crashed_task_is_retried(machine, tmp_path):
    mark = tmp_path / "mark"
    code = f"import pathlib; mark = pathlib.Path({str(mark)!r}); seen = mark.exists(); mark.touch(); sys.exit(not seen)"
    step = Step(code=code, more={"retryPolicy": {"maxRetryCount": 2, "backoffDuration": "10s"}})
    result = run_steps({"Trainer": step}, "vertex", machine)
    assert [(each.exit_code, each.waited_seconds) for each in result["Trainer"].tries] == [(1, 0), (0, 10)]
