import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.container import entrypoint
from detloom.pipelines.package_fingerprint import package_fingerprint
from detloom.schemas.errors import InputError
from detloom.trainer_module.preemption import Preempted

MODULE = "detloom.pipelines.container.entrypoint"
IMPORT_SCHEMA = "tfx.components.schema_gen.import_schema_gen.executor.Executor"


def run(arguments, root):
    variables = {"PYTHONPATH": str(Path(detloom.__file__).parents[1]), "DETLOOM_STORAGE_ROOT": root}
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def flags(invocation="{}", inputs_spec="{}", fingerprint="0" * 16, place="kubeflow", executor=IMPORT_SCHEMA):
    return [
        *("--place", place, "--package_fingerprint", fingerprint, "--executor_class_path", executor),
        *("--json_serialized_invocation_args", invocation, "--json_serialized_inputs_spec_args", inputs_spec),
    ]


@pytest.mark.parametrize("place", ["kubeflow", pytest.param("vertex", marks=pytest.mark.slow)])  # TFX's imports
def test_a_task_of_either_place_ends_with_what_its_backend_reads(backend, schema_address, schema_file):
    invocation, inputs_spec = backend.arguments({"schema": "tfx.Schema"}, parameters={"schema_file": schema_address})
    arguments = flags(invocation, inputs_spec, package_fingerprint(), backend.place)
    done = run([*arguments, "--direct_num_workers=1"], backend.storage.root)
    assert done.returncode == 0, done.stderr
    (schema,) = backend.read_answer().artifacts["schema"].artifacts
    assert schema.uri == f"{backend.address}/schema"
    assert schema.metadata["tfx_version"]
    assert (backend.folder / "schema" / "schema.pbtxt").read_bytes() == schema_file.read_bytes()
    first, *rest = done.stdout.splitlines()
    assert first.startswith(f"SomeNode on {backend.place}: detloom {detloom.__version__}, tfx 1.")
    assert rest == []  # TFX's list of all parameters is not in the log


def test_an_image_with_another_package_is_refused_before_tensorflow_is_imported():
    check = (
        "import sys; from detloom.pipelines.container.entrypoint import main; code = main(sys.argv[1:]);"
        "assert not {'tensorflow', 'tfx'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, *flags(fingerprint="0123456789abcdef")],
        env={**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: the job was compiled with the package 0123456789abcdef, this image holds {package_fingerprint()}: "
        "build the image again from the version that compiles, or compile with the version in the image.\n"
    )


def test_a_mistake_of_the_user_is_one_sentence_and_no_traceback(kubeflow, task_log, monkeypatch, capsys):
    monkeypatch.setenv("DETLOOM_STORAGE_ROOT", kubeflow.storage.root)
    address = "package://detloom.schemas/example_schema.pbtxt?sha256=0123456789abcdef"
    invocation, inputs_spec = kubeflow.arguments({"schema": "tfx.Schema"}, parameters={"schema_file": address})
    assert entrypoint.main(flags(invocation, inputs_spec, package_fingerprint())) == 1
    assert re.fullmatch(r"error: package://\S+: this image holds another file [^\n]*\.\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (InputError("annotations.json: no such file."), 1, "error: annotations.json: no such file.\n"),
        (Preempted(15, 40, "model_run"), 143, "Training ended by SIGTERM; saved at step 40 in model_run."),
    ],
)
def test_what_a_node_says_at_its_end_is_found_below_what_wraps_it(raised, code, shown, capsys):
    wrapped = RuntimeError("bundle failed")
    wrapped.__cause__ = raised
    assert entrypoint._explain(wrapped) == code
    assert capsys.readouterr().err.startswith(shown)


def test_any_other_exception_keeps_its_traceback():
    error = KeyError("model")
    with pytest.raises(KeyError) as raised:
        entrypoint._explain(error)
    assert raised.value is error


def test_what_is_not_ours_goes_to_beam():
    found, beam_args = entrypoint.parse_flags([*flags(), "--runner=DataflowRunner", "--labels=a=b"])
    assert (found.place, found.driver, found.time_limit_seconds) == ("kubeflow", False, None)
    assert beam_args == ["--runner=DataflowRunner", "--labels=a=b"]


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "soon"])
def test_a_time_limit_has_to_be_a_time(seconds, capsys):
    with pytest.raises(SystemExit):
        entrypoint.parse_flags([*flags(), "--time_limit_seconds", seconds])
    assert "--time_limit_seconds" in capsys.readouterr().err


def test_a_task_names_an_executor_or_the_driver(capsys):
    with pytest.raises(SystemExit):
        entrypoint.parse_flags(flags(executor=""))
    assert "--executor_class_path or --driver is needed" in capsys.readouterr().err
