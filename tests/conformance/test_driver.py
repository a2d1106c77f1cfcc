"""The driver on small jobs; test_demo_job.py runs the compiled demo with it."""

import json
from pathlib import Path

import pytest
from conformance_driver.job import read_job
from conformance_driver.retries import RECOMMENDED_DEFAULTS
from conformance_jobs import MODEL, Step, machine_at, run_steps

TRAINER = Step(code="write('model', 'weights'); set_metadata('model', accuracy=0.5)", outputs={"model": MODEL})
PUSHER = Step(code="print(read('model'))", inputs={"model": "Trainer.model"})
TRAIN = "inputs.artifacts['decision'].artifacts[0].metadata['train'] == 1.0"
LONG = {"backoffMaxDuration": "86400s"}
GOLDEN_FILES = sorted(Path(__file__).parents[1].glob("pipelines/compile/golden/*"))


def log_of(result, task_name, number=-1):
    return (result.logs / f"{result[task_name].tries[number].pod}.log").read_text()


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.name)
def test_the_golden_files_are_accepted(path):
    job = read_job(path.read_text(), "vertex" if path.suffix == ".json" else "kubeflow", "minio://bucket/root")
    assert {"DetectionExampleGen", "Trainer", "Pusher"} <= set(job.spec.components)


def test_a_task_reads_the_output_of_the_previous_one(machine):
    result = run_steps({"Trainer": TRAINER, "Pusher": PUSHER}, "kubeflow", machine)
    assert result.states() == {"Trainer": "SUCCEEDED", "Pusher": "SUCCEEDED"}
    assert log_of(result, "Pusher") == "weights\n"


@pytest.mark.parametrize(("train", "state"), [(1, "SUCCEEDED"), (0, "SKIPPED")])
def test_a_skipped_dag_skips_all_its_tasks(machine, train, state):
    decide = Step(code=f"set_metadata('decision', train={train})", outputs={"decision": MODEL})
    training = Step(
        inputs={"decision": "Decide.decision"},
        condition=TRAIN,
        tasks={"Trainer": TRAINER, "Pusher": PUSHER},
    )
    steps = {"Decide": decide, "training": training, "After": Step(code="pass", after=["training"])}
    result = run_steps(steps, "kubeflow", machine)
    assert result["training"].state == state
    assert ("training.Trainer" in result.tasks) == bool(train)
    assert result["After"].state == ("SUCCEEDED" if train else "OMITTED")  # X.Succeeded
    assert result.state == "SUCCEEDED"


def test_a_crashed_task_is_retried_on_a_new_disk(tmp_path):
    machine = machine_at(tmp_path / "retrying", retry_defaults=RECOMMENDED_DEFAULTS)
    code = f"""
import pathlib
marks = pathlib.Path({str(tmp_path)!r}, 'marks'); marks.mkdir(exist_ok=True)
tries = len(list(marks.iterdir())); (marks / str(tries)).touch()
assert not os.path.exists(local(artifact('outputs', 'model')['uri']))
write('model', 'weights'); print(os.environ['KFP_RETRY_INDEX'])
if tries < 2: raise SystemExit(9)
"""
    policy = {"maxRetryCount": 3, "backoffDuration": "30s", "backoffFactor": 2, **LONG}
    step = Step(code=code, outputs={"model": MODEL}, more={"retryPolicy": policy})
    result = run_steps({"Trainer": step}, "kubeflow", machine)
    assert result["Trainer"].state == "SUCCEEDED"
    assert [(each.exit_code, each.waited_seconds) for each in result["Trainer"].tries] == [(9, 0), (9, 30), (0, 60)]
    assert log_of(result, "Trainer") == "2\n"


def test_a_cached_task_reuses_an_earlier_run(machine):
    steps = {"Trainer": Step(code=TRAINER.code, outputs=TRAINER.outputs, is_cached=True), "Pusher": PUSHER}
    first = run_steps(steps, "kubeflow", machine)
    second = run_steps(steps, "kubeflow", machine)
    assert first.states() == {"Trainer": "SUCCEEDED", "Pusher": "SUCCEEDED"}
    assert second.states() == {"Trainer": "CACHED", "Pusher": "SUCCEEDED"}
    assert second["Trainer"].outputs["model"][0].id == first["Trainer"].outputs["model"][0].id


@pytest.mark.parametrize(("code", "state"), [("pass", "COMPLETE"), ("raise SystemExit(1)", "FAILED")])
def test_the_exit_handler_gets_the_state_of_the_dag_as_json(machine, code, state):
    parameters = {"status": "STATUS"}
    notifier = Step(code="print(parameter('status'))", parameters=parameters, after=["work"], is_exit_handler=True)
    steps = {"work": Step(tasks={"Trainer": Step(code=code)}), "Notifier": notifier}
    result = run_steps(steps, "kubeflow", machine)
    assert json.loads(log_of(result, "Notifier")) == {
        "error": {},
        "pipelineJobResourceName": result.name,
        "pipelineTaskName": "work",
        "state": state,
    }
    assert result.state == ("SUCCEEDED" if state == "COMPLETE" else "FAILED")


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
