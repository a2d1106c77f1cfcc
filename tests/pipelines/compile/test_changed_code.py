"""A change of the code runs those tasks of a compiled job again whose command or parameters change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from code_copies import LOSS, NOTIFIER, add_line, copy_package, reformat_and_comment

from detloom.pipelines.compile.pipeline_spec import containers_of, tasks_of

RUN_FILE = Path(__file__).parent / "run_files" / "vertex_tpu_v3.yaml"
PROGRAM = """
import sys
from pathlib import Path
from detloom.pipelines.compile.compile_job import compile_job
from detloom.schemas.reading.overrides import parse_set
from detloom.schemas.run_file.read_run_file import read_run_file
hook = parse_set("notifications={webhook: {url: 'env:HOOK'}}")
run = read_run_file(Path(sys.argv[1]), overrides=[hook], place="vertex")
Path(sys.argv[2]).write_text(compile_job(run, "vertex"))
"""


def compile_in(package: Path) -> dict[str, str]:
    """Return what is part of each task's cache key: its container and its parameters."""
    environment = {**os.environ, "PYTHONPATH": str(package), "TF_CPP_MIN_LOG_LEVEL": "3"}
    job = package / "job.json"
    subprocess.run([sys.executable, "-c", PROGRAM, str(RUN_FILE), str(job)], env=environment, cwd=package, check=True)
    spec = json.loads(job.read_text())["pipelineSpec"]
    tasks, containers = tasks_of(spec), containers_of(spec)
    return {name: json.dumps([tasks[name], container], sort_keys=True) for name, container in containers.items()}


@pytest.mark.nightly
def test_a_change_runs_the_tasks_that_execute_it(tmp_path):
    package = copy_package(tmp_path / "package")
    original = compile_in(package)
    reformat_and_comment(package)
    assert compile_in(package) == original
    for module, expected in (
        (NOTIFIER, {"Notifier", "FailureNotifier"}),
        (LOSS, {"Trainer", "DetectionEvaluator", "ModelCard"}),
    ):
        before = compile_in(package)
        add_line(package, module)
        after = compile_in(package)
        assert {name for name in before if before[name] != after[name]} == expected
