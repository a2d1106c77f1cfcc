"""All checks of `detloom doctor`: of this machine and, with a run file, of the run's folders, data and cluster."""

import json
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from detloom.pipelines.doctor.check_result import Check, CheckResult, run_checks, run_probe
from detloom.pipelines.doctor.machine import check_folder, check_memory, check_tensorflow, check_tfx
from detloom.pipelines.doctor.packages import check_packages
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact, show_address
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.push import is_remote
from detloom.schemas.run_file.run_file import RunFile

_SAMPLE_PROBE = """
import sys
from detloom.components.example_gen.check_sample import check_sample_as_json
print(check_sample_as_json(*sys.argv[1:]))
"""
_SAMPLE_RECORDS = 48
_SAMPLE_SECONDS = 60  # most of it for the import of TensorFlow and Beam, which takes some 10 s


def check_machine_and_run(run: RunFile | None = None) -> tuple[CheckResult, ...]:
    """Run all checks; without a run, check the default workspace and no data."""
    checks: dict[str, Check] = {
        "packages": check_packages,
        "TensorFlow": check_tensorflow,
        "TFX": check_tfx,
        "memory": check_memory,
        "temporary files": partial(check_folder, "temporary files", tempfile.gettempdir()),
        "workspace": partial(check_folder, "workspace", os.path.abspath(run.workspace if run else "detloom_runs")),
    }
    if run is not None:
        checks["data sample"] = partial(check_data_sample, run)
        if run.push_to and not is_remote(run.push_to) and not is_in_container(run, run.push_to):
            checks["push_to"] = partial(check_folder, "push_to", run.push_to)
        if run.kubeflow and run.kubeflow.host:
            checks["Kubeflow"] = partial(check_kubeflow, run)
    return run_checks(checks)


def is_in_container(run: RunFile, path: str) -> bool:
    """Return True for a path that exists only in the containers of a cluster, so that it cannot be checked here."""
    if os.path.exists(path.partition("{")[0]):
        return False
    volumes = run.kubeflow.volumes if run.kubeflow else ()
    is_mounted = any(PurePosixPath(path).is_relative_to(volume.mount_path) for volume in volumes)
    return is_mounted or (run.vertex is not None and path.startswith("/gcs/"))


def check_data_sample(run: RunFile) -> Iterator[CheckResult]:
    """Read a few records with ingestion's readers and checks, in a process with a time limit."""
    if run.data.path == EMBEDDED_DIGITS or is_in_container(run, run.data.path):
        return
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.components.example_gen.skipped_spans import describe_skipped_spans

    if skipped := describe_skipped_spans(run.data.path):
        detail, _, next_step = skipped.partition(". ")
        next_step = f"{next_step[:1].lower()}{next_step[1:].rstrip('.')}"
        yield CheckResult(name="data", status="warning", detail=detail, next_step=next_step)
    params = ExampleGenParams.from_run_file(run.data, run.checks.near_duplicates.max_distance)
    arguments = (run.data.path, json.dumps(params.to_properties()), str(_SAMPLE_RECORDS))
    try:
        sample = run_probe(_SAMPLE_PROBE, *arguments, seconds=_SAMPLE_SECONDS, what="reading a sample")
    except TimeoutError as error:
        next_step = "none is needed: ingestion checks all records; `detloom ingest` does it without a run"
        yield CheckResult(name="data sample", status="warning", detail=f"{error}: large data", next_step=next_step)
    else:
        yield describe_sample(sample, params.max_reject_fraction, params.allow_no_objects)


def describe_sample(sample: dict[str, Any], max_reject_fraction: float, allow_no_objects: bool) -> CheckResult:
    """Return the result for a `SampleReport`: an error if nothing can be read or all records or boxes are refused.

    A share above `max_reject_fraction` is a warning only, because the other records may be better.
    """
    name = "data sample"
    if sample["error"]:
        next_step = "correct the data or the section data of the run file"
        return CheckResult(name=name, status="error", detail=show_address(sample["error"]), next_step=next_step)
    counts = [(sample[f"num_{what}"], sample[f"num_{what}_refused"], what) for what in ("records", "boxes")]
    shares = [num_refused / num_read for num_read, num_refused, _ in counts if num_read]
    refused = ", ".join(f"{num_refused} of {num_read} {what} refused" for num_read, num_refused, what in counts)
    detail = f"{sample['data_format']}: {refused}"
    if not (sample["num_boxes"] or allow_no_objects or sample["data_format"] == "images"):
        next_step = "correct the data; if they have no objects, set data.allow_no_objects"
        return CheckResult(name=name, status="warning", detail=detail, expected="boxes", next_step=next_step)
    if max(shares, default=0.0) <= max_reject_fraction:
        return CheckResult(name=name, status="ok", detail=detail)
    reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(sample["reasons"].items()))
    return CheckResult(
        name=name,
        status="error" if max(shares) == 1 else "warning",
        detail=f"{detail} ({reasons}); the first is {show_address(sample['first'])}",
        expected=f"at most {max_reject_fraction:.0%} refused (data.max_reject_fraction)",
        next_step="correct the data; `detloom ingest` lists all refused records without a run",
    )


def check_kubeflow(run: RunFile) -> Iterator[CheckResult]:
    """Connect to the API of Kubeflow Pipelines, and check the settings of the cluster that the run file relies on."""
    from detloom.pipelines.backends.backend import connect

    assert run.kubeflow is not None
    try:
        backend = connect(run, "kubeflow")
        backend.latest_runs(1)
        warnings = backend.warnings(run)
    except InputError as error:
        next_step = "needed only for submit, status and schedule"
        yield CheckResult(name="Kubeflow", status="warning", detail=str(error), next_step=next_step)
        return
    for warning in warnings:
        yield CheckResult(name="Kubeflow", status="warning", detail=warning)
    if not warnings:
        yield CheckResult(name="Kubeflow", status="ok", detail=f"{redact(run.kubeflow.host)} answers")
