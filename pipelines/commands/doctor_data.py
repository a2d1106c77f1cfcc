"""Checks of `detloom doctor` on the data of a run."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detloom.components.storage.storage import is_address
from detloom.pipelines.commands.findings import Finding, run_probe
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.run_file import RunFile

_SAMPLE_PROBE = """
import sys
from detloom.components.example_gen.check_sample import check_sample_as_json
print(check_sample_as_json(*sys.argv[1:]))
"""
_SAMPLE_RECORDS = 48
_SAMPLE_SECONDS = 60  # most of it for the import of TensorFlow and Beam, which takes some 10 s


def check_data(path: str) -> Iterator[Finding]:
    """Check that the data folder can be listed; for a pattern such as span-{SPAN}, check the folder above it.

    An address is left to the sample, which can read it.
    """
    if is_address(path):
        return
    if path == EMBEDDED_DIGITS:
        yield Finding(name="data.path", status="ok", found="the embedded data set")
        return
    beginning, brace, _ = path.partition("{")  # TFX resolves {SPAN} and {VERSION}
    folder = Path(f"{beginning}{brace}").parent if brace else Path(path)
    shown = redact(str(folder))
    try:
        with os.scandir(folder) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        found, wanted = f"{shown}: {error.strerror}", "a folder that this user can read"
        next_step = "correct data.path, or give this user read permission"
        yield Finding(name="data.path", status="error", found=found, wanted=wanted, next_step=next_step)
        return
    yield Finding(
        name="data.path",
        status="warning" if is_empty else "ok",
        found=f"{shown}: {'empty' if is_empty else 'readable'}",
        wanted="a folder with the data set",
        next_step="check that data.path is right and that its disk is mounted" if is_empty else "",
    )


def check_data_sample(run: RunFile) -> Iterator[Finding]:
    """Read a few records with ingestion's readers and checks, in a process with a time limit."""
    if run.data.path == EMBEDDED_DIGITS:
        return
    from detloom.components.example_gen.params import ExampleGenParams

    params = ExampleGenParams.from_run_file(run.data, run.checks.near_duplicates.max_distance)
    arguments = (run.data.path, json.dumps(params.to_properties()), str(_SAMPLE_RECORDS))
    probe = run_probe(_SAMPLE_PROBE, *arguments, seconds=_SAMPLE_SECONDS, what="reading a sample")
    if probe.is_timeout:
        yield Finding(
            name="data sample",
            status="warning",
            found=f"{probe.failure}: large or remote data",
            wanted="a sample of the records that ingestion accepts",
            next_step="none is needed: ingestion checks all records; `detloom ingest` does it without a run",
        )
    elif probe.failure:
        next_step = "correct what the other checks report, then run doctor again"
        yield Finding(name="data sample", status="error", found=probe.failure, next_step=next_step)
    else:
        yield describe_sample(probe.answer, params.max_reject_fraction)


def describe_sample(sample: dict[str, Any], max_reject_fraction: float) -> Finding:
    """Return the finding of a `SampleReport`: an error if nothing can be read or all records or boxes are refused.

    A share above `max_reject_fraction` is a warning only, because the other records may be better.
    """
    name = "data sample"
    if sample["error"]:
        return Finding(
            name=name,
            status="error",
            found=redact(sample["error"]),
            wanted="data that ingestion accepts",
            next_step="correct the data or the section data of the run file",
        )
    counts = [(sample[f"num_{what}"], sample[f"num_{what}_refused"], what) for what in ("records", "boxes")]
    shares = [num_refused / num_read for num_read, num_refused, _ in counts if num_read]
    refused = ", ".join(f"{num_refused} of {num_read} {what} refused" for num_read, num_refused, what in counts)
    found = f"{sample['data_format']}: {refused}"
    if max(shares, default=0.0) <= max_reject_fraction:
        return Finding(name=name, status="ok", found=found)
    reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(sample["reasons"].items()))
    return Finding(
        name=name,
        status="error" if max(shares) == 1 else "warning",
        found=f"{found} ({reasons}); the first is {redact(sample['first'])}",
        wanted=f"at most {max_reject_fraction:.0%} refused (data.max_reject_fraction)",
        next_step="correct the data; `detloom ingest` lists all refused records without a run",
    )
