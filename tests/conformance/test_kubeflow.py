import json

import pytest
from conformance_driver.retries import RECOMMENDED_DEFAULTS
from conformance_driver.run import Machine
from conformance_driver.runner import DeletedPodRunner
from conformance_jobs import MODEL, ROOTS, Step, machine_at, run_steps

TRAINER = Step(code="write('model', 'weights'); set_metadata('model', accuracy=0.5)", outputs={"model": MODEL})
PUSHER = Step(code="print(read('model'))", inputs={"model": "Trainer.model"})
TRAIN = "inputs.artifacts['decision'].artifacts[0].metadata['train'] == 1.0"
LONG = {"backoffMaxDuration": "86400s"}


@pytest.fixture
def retrying(tmp_path):
    """Return a machine whose Argo has the settings that docs/kubeflow.md recommends."""
    return machine_at(tmp_path / "retrying", retry_defaults=RECOMMENDED_DEFAULTS)


def log_of(result, task_name, number=-1):
    return (result.logs / f"{result[task_name].tries[number].pod}.log").read_text()


def test_a_task_reads_the_output_of_the_previous_one(machine):
    result = run_steps({"Trainer": TRAINER, "Pusher": PUSHER}, "kubeflow", machine)
    assert result.states() == {"Trainer": "SUCCEEDED", "Pusher": "SUCCEEDED"}
    assert log_of(result, "Pusher") == "weights\n"


def test_kubeflow_addresses_consist_of_root_pipeline_run_task_random_output(machine):
    result = run_steps({"Trainer": TRAINER}, "kubeflow", machine)
    (model,) = result["Trainer"].outputs["model"]
    head, salt, key = model.uri.rsplit("/", 2)
    assert head == f"{ROOTS['kubeflow']}/small/{result.id}/Trainer"
    assert len(salt) == 36
    assert key == "model"
    output_file = result["Trainer"].executor_input["outputs"]["outputFile"]
    assert output_file == f"/minio/bucket/root/small/{result.id}/Trainer/{salt}/output_metadata.json"


def test_an_input_has_no_type_and_additional_mlmd_metadata(machine):
    result = run_steps({"Trainer": TRAINER, "Pusher": PUSHER}, "kubeflow", machine)
    (artifact,) = result["Pusher"].executor_input["inputs"]["artifacts"]["model"]["artifacts"]
    assert artifact["name"] == str(result["Trainer"].outputs["model"][0].id)
    assert artifact["type"] == {"instanceSchema": ""}
    assert artifact["metadata"].keys() == {"accuracy", "display_name", "store_session_info"}


def test_an_input_of_a_dag_has_no_type(machine):
    inner = Step(code="print(read('model'))", inputs={"model": "^model"})
    dag = Step(inputs={"model": "Trainer.model"}, tasks={"Pusher": inner})
    result = run_steps({"Trainer": TRAINER, "training": dag}, "kubeflow", machine)
    (artifact,) = result["Pusher"].executor_input["inputs"]["artifacts"]["model"]["artifacts"]
    assert "type" not in artifact
    assert list(result.tasks) == ["Trainer", "training.Pusher", "training"]


def test_metadata_have_the_types_of_mlmd(machine):
    code = "set_metadata('model', flag=True, names=['a'], more={'k': 1}, whole=2)"
    result = run_steps({"Trainer": Step(code=code, outputs={"model": MODEL})}, "kubeflow", machine)
    metadata = result["Trainer"].outputs["model"][0].metadata
    assert {key: metadata[key] for key in ("flag", "names", "more", "whole")} == {
        "flag": 1.0,
        "names": {"list": ["a"]},
        "more": {"struct": {"k": 1.0}},
        "whole": 2.0,
    }


def test_null_metadata_fail_the_task(machine):
    steps = {"Trainer": Step(code="set_metadata('model', nothing=None)", outputs={"model": MODEL})}
    result = run_steps(steps, "kubeflow", machine)
    assert result["Trainer"].error == "metadata nothing: unknown/unsupported value type null_value"


def test_an_output_file_with_an_unknown_field_fails_the_task(machine):
    result = run_steps({"Trainer": Step(code="output['scores'] = 1", outputs={"model": MODEL})}, "kubeflow", machine)
    assert 'no field named "scores"' in result["Trainer"].error
    assert result.state == "FAILED"


def test_pods_do_not_share_disks(machine):
    look = "print(sum(len(files) for _, _, files in os.walk(os.environ['DETLOOM_STORAGE_ROOT'])))"
    steps = {"Trainer": TRAINER, "Other": Step(code=look, after=["Trainer"])}
    result = run_steps(steps, "kubeflow", machine)
    assert log_of(result, "Other") == "1\n"  # its own log
    assert not list((machine.home / "pods").iterdir())


def test_a_failed_task_stops_only_its_dependents(machine):
    steps = {
        "Bad": Step(code="raise SystemExit(3)", outputs={"model": MODEL}),
        "Waiting": Step(code="pass", after=["Bad"]),
        "Other": Step(code="pass"),
    }
    result = run_steps(steps, "kubeflow", machine)
    assert result.states() == {"Bad": "FAILED", "Other": "SUCCEEDED", "Waiting": "OMITTED"}
    assert [each.exit_code for each in result["Bad"].tries] == [3]
    assert result.state == "FAILED"


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


def test_inputs_are_resolved_before_the_condition(machine):
    decide = Step(code="set_metadata('decision', train=0)", outputs={"decision": MODEL, "never": MODEL})
    late = Step(inputs={"decision": "Decide.decision", "model": "Trainer.model"}, condition=TRAIN, code="pass")
    trainer = Step(
        code="write('model', 'x')", outputs={"model": MODEL}, inputs={"decision": "Decide.decision"}, condition=TRAIN
    )
    result = run_steps({"Decide": decide, "Trainer": trainer, "Late": late}, "kubeflow", machine)
    assert result.states() == {"Decide": "SUCCEEDED", "Trainer": "SKIPPED", "Late": "OMITTED"}


def test_a_condition_that_cannot_be_evaluated_fails_the_task(machine):
    steps = {"Trainer": TRAINER, "Late": Step(code="pass", inputs={"decision": "Trainer.model"}, condition=TRAIN)}
    assert "no such key: 'train'" in run_steps(steps, "kubeflow", machine)["Late"].error


def test_a_crashed_task_is_retried_on_a_new_disk(retrying, tmp_path):
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
    result = run_steps({"Trainer": step}, "kubeflow", retrying)
    assert result["Trainer"].state == "SUCCEEDED"
    assert [(each.exit_code, each.waited_seconds) for each in result["Trainer"].tries] == [(9, 0), (9, 30), (0, 60)]
    assert log_of(result, "Trainer") == "2\n"


def test_tasks_inherit_the_retry_policy_of_their_dag(retrying):
    inner = {"Trainer": Step(code="raise SystemExit(1)")}
    dag = Step(tasks=inner, more={"retryPolicy": {"maxRetryCount": 1, **LONG}})
    assert len(run_steps({"training": dag}, "kubeflow", retrying)["Trainer"].tries) == 2


def test_a_cached_task_reuses_an_earlier_run(machine):
    steps = {"Trainer": Step(code=TRAINER.code, outputs=TRAINER.outputs, is_cached=True), "Pusher": PUSHER}
    first = run_steps(steps, "kubeflow", machine)
    second = run_steps(steps, "kubeflow", machine)
    assert first.states() == {"Trainer": "SUCCEEDED", "Pusher": "SUCCEEDED"}
    assert second.states() == {"Trainer": "CACHED", "Pusher": "SUCCEEDED"}
    assert second["Trainer"].outputs["model"][0].id == first["Trainer"].outputs["model"][0].id


def test_a_failed_task_is_not_cached(machine):
    steps = {"Trainer": Step(code="raise SystemExit(1)", outputs={"model": MODEL}, is_cached=True)}
    run_steps(steps, "kubeflow", machine)
    assert run_steps(steps, "kubeflow", machine)["Trainer"].state == "FAILED"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Step(code="pass", is_cached=True), Step(code="pass # edited", is_cached=True)),
        (
            Step(code="pass", parameters={"n": 1}, is_cached=True),
            Step(code="pass", parameters={"n": 2}, is_cached=True),
        ),
        (Step(code="pass", is_cached=True), Step(code="pass", outputs={"model": MODEL}, is_cached=True)),
    ],
)
def test_command_parameters_and_outputs_are_part_of_the_cache_key(machine, first, second):
    run_steps({"Trainer": first}, "kubeflow", machine)
    assert run_steps({"Trainer": second}, "kubeflow", machine)["Trainer"].state == "SUCCEEDED"


def test_a_new_input_artifact_is_part_of_the_cache_key(machine):
    pusher = Step(code=PUSHER.code, inputs=PUSHER.inputs, is_cached=True)
    steps = {"Trainer": TRAINER, "Pusher": pusher}
    run_steps(steps, "kubeflow", machine)
    assert run_steps(steps, "kubeflow", machine)["Pusher"].state == "SUCCEEDED"


STATUS = Step(code="print(parameter('status'))", parameters={"status": "STATUS"}, after=["work"], is_exit_handler=True)


@pytest.mark.parametrize(("code", "state"), [("pass", "COMPLETE"), ("raise SystemExit(1)", "FAILED")])
def test_the_exit_handler_gets_the_state_of_the_dag_as_json(machine, code, state):
    steps = {"work": Step(tasks={"Trainer": Step(code=code)}), "Notifier": STATUS}
    result = run_steps(steps, "kubeflow", machine)
    assert json.loads(log_of(result, "Notifier")) == {
        "error": {},
        "pipelineJobResourceName": result.name,
        "pipelineTaskName": "work",
        "state": state,
    }
    assert result.state == ("SUCCEEDED" if state == "COMPLETE" else "FAILED")


def test_the_exit_handler_gets_running_if_no_launcher_ran_last(machine):
    """The DAG's state is not updated after a task that its driver ends."""
    inner = {
        "First": Step(code="set_metadata('decision', train=0)", outputs={"decision": MODEL}),
        "Second": Step(code="pass", inputs={"decision": "First.decision"}, condition=TRAIN),
    }
    result = run_steps({"work": Step(tasks=inner), "Notifier": STATUS}, "kubeflow", machine)
    assert json.loads(log_of(result, "Notifier"))["state"] == "RUNNING"
    assert result.state == "SUCCEEDED"


def test_a_failing_exit_handler_does_not_fail_the_run(machine):
    handler = Step(code="raise SystemExit(1)", after=["work"], is_exit_handler=True)
    result = run_steps({"work": Step(tasks={"Trainer": TRAINER}), "Notifier": handler}, "kubeflow", machine)
    assert result["Notifier"].state == "FAILED"
    assert result.state == "SUCCEEDED"


def test_claims_and_secrets_reach_the_container(tmp_path):
    claim = tmp_path / "claim"
    claim.mkdir()
    machine = machine_at(tmp_path / "machine", claims={"models": claim}, secrets={("hook", "url"): "http://here"})
    platform = {
        "Trainer-executor": {
            "pvcMount": [{"constant": "models", "mountPath": "/models"}],
            "secretAsEnv": [{"secretName": "hook", "keyToEnv": [{"envVar": "URL", "secretKey": "url"}]}],
            "nodeSelector": {"labels": {"gpu": "yes"}},
        }
    }
    code = "open('/models/version', 'w').write(os.environ['URL'])"
    result = run_steps({"Trainer": Step(code=code)}, "kubeflow", machine, platform)
    assert result["Trainer"].state == "SUCCEEDED"
    assert (claim / "version").read_text() == "http://here"


def test_a_missing_claim_or_secret_fails_the_task(machine):
    platform = {"Trainer-executor": {"pvcMount": [{"constant": "models", "mountPath": "/models"}]}}
    result = run_steps({"Trainer": TRAINER}, "kubeflow", machine, platform)
    assert result["Trainer"].error == "persistentvolumeclaim 'models' not found"


def test_placeholders_in_constants_are_replaced(machine):
    parameters = {
        "run": "{{$.pipeline_job_name}}",
        "id": "{{$.pipeline_job_uuid}}",
        "text": "run {{$.pipeline_job_name}}",
    }
    code = "print([parameter(key) for key in ('run', 'id')])"
    result = run_steps(
        {"A": Step(code=code, parameters={k: parameters[k] for k in ("run", "id")})}, "kubeflow", machine
    )
    assert log_of(result, "A") == f"['{result.name}', '{result.id}']\n"
    result = run_steps({"A": Step(code=code, parameters=parameters)}, "kubeflow", machine)
    assert "placeholder" in result["A"].error  # not inside a string


RETRY = {"retryPolicy": {"maxRetryCount": 1, "backoffDuration": "1s", "backoffMaxDuration": "3600s"}}
CLAIM = {"Trainer-executor": {"pvcMount": [{"constant": "models", "mountPath": "/models"}]}}
# Needs longer to save after SIGTERM than a pod lives, and has a checkpoint from before.
PREEMPTED = """
import signal, time
state = '/models/checkpoint'
if os.path.exists(state):
    write('model', 'resumed at ' + open(state).read())
else:
    open(state, 'w').write('3')
    def save(*_):
        time.sleep(3)
        open(state, 'w').write('4')
    signal.signal(signal.SIGTERM, save)
    open('/models/started', 'w').close()
    time.sleep(60)
"""


def test_a_deleted_pod_loses_what_it_has_not_saved_and_its_retry_resumes(tmp_path):
    claim = tmp_path / "claim"
    claim.mkdir()
    runner = DeletedPodRunner(tmp_path / "logs", {"Trainer": claim / "started"}, grace_seconds=0.2)
    machine = Machine(tmp_path, runner, claims={"models": claim})
    trainer = Step(code=PREEMPTED, outputs={"model": MODEL}, more=RETRY)
    result = run_steps({"Trainer": trainer, "Pusher": PUSHER}, "kubeflow", machine, CLAIM)
    assert [each.phase for each in result["Trainer"].tries] == ["Error", "Succeeded"]
    assert log_of(result, "Pusher") == "resumed at 3\n"


def test_stock_argo_does_not_retry_a_container_that_exits_nonzero(machine, retrying):
    steps = {"Trainer": Step(code="raise SystemExit(3)", more=RETRY)}
    assert [each.exit_code for each in run_steps(steps, "kubeflow", machine)["Trainer"].tries] == [3]
    assert [each.exit_code for each in run_steps(steps, "kubeflow", retrying)["Trainer"].tries] == [3, 3]


def test_a_task_runs_twice_if_its_pod_is_lost_after_its_work(tmp_path):
    machine = machine_at(tmp_path / "machine", lost_after_work=frozenset({"Trainer"}))
    result = run_steps({"Trainer": TRAINER, "Pusher": PUSHER}, "kubeflow", machine)
    assert (result.state, len(result["Trainer"].tries)) == ("SUCCEEDED", 2)  # by the default retries, without a policy
    assert log_of(result, "Pusher") == "weights\n"


def test_a_failed_task_uploads_the_log_of_each_try_and_nothing_else(retrying):
    code = "write('model', 'x'); print('half'); sys.stdout.flush(); raise SystemExit(1)"
    result = run_steps({"Trainer": Step(code=code, outputs={"model": MODEL}, more=RETRY)}, "kubeflow", retrying)
    uploaded = [path for path in (retrying.home / "buckets").rglob("*") if path.is_file()]
    assert sorted(path.name for path in uploaded) == ["executor-logs-0", "executor-logs-1"]
    assert {path.read_text() for path in uploaded} == {"half\n"}
    assert list(result["Trainer"].outputs) == ["executor-logs"]
