import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import detloom
from detloom.components.fingerprints import describe_code
from detloom.pipelines.container import entrypoint
from detloom.pipelines.dag.packed_settings import PACKED, pack
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import InputError
from detloom.trainer_module.runtime.preemption import Preempted

MODULE = "detloom.pipelines.container.entrypoint"
IMPORT_SCHEMA = "tfx.components.schema_gen.import_schema_gen.executor.Executor"


def run(*arguments, root=""):
    environment = {**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1]), "DETLOOM_STORAGE_ROOT": root}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def flags(
    invocation="{}", inputs_spec="{}", code=f"{MODULE}={'0' * 16}", place="kubeflow", executor=IMPORT_SCHEMA, line=None
):
    return [
        *("--place", place, f"--tfx={line or tfx_line()}", "--code", code, "--executor_class_path", executor),
        *("--json_serialized_invocation_args", invocation, "--json_serialized_inputs_spec_args", inputs_spec),
    ]


@pytest.mark.slow  # subprocesses that import TFX
def test_a_task_writes_the_output_that_its_backend_reads(backend, schema_address, schema_file):
    invocation, inputs_spec = backend.arguments({"schema": "tfx.Schema"}, parameters={"schema_file": schema_address})
    arguments = flags(invocation, inputs_spec, describe_code(MODULE), backend.place)
    done = run("-m", MODULE, *arguments, "--direct_num_workers=1", root=backend.storage.root)
    assert done.returncode == 0, done.stderr
    (schema,) = backend.read_output().artifacts["schema"].artifacts
    assert schema.uri == f"{backend.address}/schema"
    assert schema.metadata["tfx_version"]
    assert (backend.folder / "schema" / "schema.pbtxt").read_bytes() == schema_file.read_bytes()
    first, *rest = done.stdout.splitlines()
    assert first.startswith(f"SomeNode on {backend.place}: detloom {detloom.__version__}, tfx 1.")
    assert rest == []  # TFX's list of all parameters is not logged


@pytest.mark.parametrize("module", [MODULE, "detloom.pipelines.container.no_such_module", "os"])
def test_an_image_with_other_code_is_refused_before_tensorflow_is_imported(module):
    check = (
        "import sys; from detloom.pipelines.container.entrypoint import main; code = main(sys.argv[1:]);"
        "assert not {'tensorflow', 'tfx'} & set(sys.modules); sys.exit(code)"
    )
    done = run("-c", check, *flags(code=f"{module}=0123456789abcdef"))
    assert done.returncode == 1
    assert re.fullmatch(rf"error: [^\n]*0123456789abcdef[^\n]*{re.escape(module)}[^\n]*\n", done.stderr)


def test_an_image_with_another_tfx_line_is_refused(capsys):
    assert entrypoint.main(flags(code=describe_code(MODULE), line="1.99")) == 1
    assert re.fullmatch(r"error: [^\n]*TFX 1\.99[^\n]*TFX_LINE=1\.99[^\n]*\n", capsys.readouterr().err)


def test_a_mistake_of_the_user_has_no_traceback(kubeflow, task_log, monkeypatch, capsys):
    monkeypatch.setenv("DETLOOM_STORAGE_ROOT", kubeflow.storage.root)
    address = "package://detloom.schemas.contracts/example_schema.pbtxt?sha256=0123456789abcdef"
    invocation, inputs_spec = kubeflow.arguments({"schema": "tfx.Schema"}, parameters={"schema_file": address})
    assert entrypoint.main(flags(invocation, inputs_spec, describe_code(MODULE))) == 1
    assert re.fullmatch(r"error: package://\S+: [^\n]*\.\n", capsys.readouterr().err)


def test_a_task_without_its_gpus_fails_before_it_reads_anything(task_log, monkeypatch, capsys):
    monkeypatch.setenv("DETLOOM_GPUS", "64")
    executed = []
    assert entrypoint.main(flags("no JSON", code=describe_code(MODULE)), lambda *task: executed.append(task)) == 1
    assert executed == []
    assert re.fullmatch(r"error: DETLOOM_GPUS: [^\n]*64[^\n]*gpu\.md\.\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (InputError("annotations.json: no such file."), 1, "error: annotations.json: no such file.\n"),
        (PermissionError(13, "Permission denied", "/data/serving"), 1, "error: user "),
        (tf.errors.PermissionDeniedError(None, None, "/data/serving; Permission denied"), 1, "error: user "),
        (Preempted(15, 40, "model_run"), 143, f"{Preempted(15, 40, 'model_run')}"),
    ],
)
def test_mistakes_and_interruptions_are_found_in_the_causes_of_an_exception(raised, code, shown, capsys):
    wrapped = RuntimeError("bundle failed")
    wrapped.__cause__ = raised
    assert entrypoint.explain(wrapped) == code
    assert capsys.readouterr().err.startswith(shown)


def test_a_beam_job_that_failed_on_a_cluster_has_no_traceback(kubeflow, task_log, capsys):
    def run_task(task, storage):
        raise RuntimeError("Pipeline job-1 failed in state FAILED: x.JobMasterException: a machine is lost\n\tat y.z")

    assert entrypoint.main(flags(*kubeflow.arguments({}), describe_code(MODULE)), run_task) == 1
    assert capsys.readouterr().err == "error: the Beam job ended in state FAILED: a machine is lost.\n"


def test_others_may_not_write_to_the_files_of_a_task_although_the_launcher_lets_them(kubeflow, task_log, tmp_path):
    def run_task(task, storage):
        (tmp_path / "made").mkdir()

    before = os.umask(0)
    try:
        entrypoint.main(flags(*kubeflow.arguments({}), describe_code(MODULE)), run_task)
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o775


def test_other_exceptions_keep_their_traceback():
    error = KeyError("model")
    with pytest.raises(KeyError) as raised:
        entrypoint.explain(error)
    assert raised.value is error


def test_packed_settings_reach_the_task(task_log):
    settings = {"steps": ("NUMBER_INTEGER", 4.0), "gates": ("STRING", '{"floors":[]}')}
    invocation = json.dumps({"inputs": {"parameterValues": {PACKED: pack(settings), "run_id": "r-1"}}})
    arguments = flags(invocation, code=describe_code(MODULE))
    place = arguments.index("--json_serialized_inputs_spec_args")
    arguments[place : place + 2] = ["--input_types", f"model=tfx.Model {PACKED}=STRING run_id=STRING"]
    tasks = []
    assert entrypoint.main(arguments, lambda task, storage: tasks.append(task)) == 0
    values = json.loads(tasks[0].invocation)["inputs"]["parameterValues"]
    assert values == {"steps": 4.0, "gates": '{"floors":[]}', "run_id": "r-1"}
    assert set(json.loads(tasks[0].inputs_spec)["parameters"]) == set(values)


def test_settings_that_cannot_be_unpacked_are_a_mistake_without_traceback(task_log, capsys):
    arguments = flags("{}", code=describe_code(MODULE))
    place = arguments.index("--json_serialized_inputs_spec_args")
    arguments[place : place + 2] = ["--input_types", f"{PACKED}=STRING"]
    assert entrypoint.main(arguments, lambda task, storage: None) == 1
    assert capsys.readouterr().err.startswith("error: packed_settings: ")


def test_unknown_arguments_are_passed_to_beam():
    found, beam_args = entrypoint.parse_flags([*flags(), "--runner=DataflowRunner", "--labels=a=b"])
    assert (found.place, found.driver, found.time_limit_seconds) == ("kubeflow", False, None)
    assert beam_args == ["--runner=DataflowRunner", "--labels=a=b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(([*flags(), "--time_limit_seconds", each], "--time_limit_seconds") for each in ("0", "-5", "nan", "soon")),
        (flags(executor=""), "--executor_class_path or --driver is needed"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        entrypoint.parse_flags(arguments)
    assert message in capsys.readouterr().err
