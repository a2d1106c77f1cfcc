"""Validate the splits of one examples folder: statistics, checks, report, gate. Beam, but no TFX."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import apache_beam as beam
from absl import logging

from detloom.components.dataset_validator.checks import CheckResult, run_checks
from detloom.components.dataset_validator.collect_statistics import collect_statistics
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report import build_report, write_report
from detloom.schemas.label_map import LabelMap


def validate(
    shard_patterns: Mapping[str, str],
    label_map: LabelMap,
    params: DatasetValidatorParams,
    report_folder: Path,
    make_pipeline: Callable[[], beam.Pipeline],
) -> list[CheckResult]:
    """Write `report.json` and `report.html`, log the warnings, and return all results; failures are for the caller."""
    report_folder.mkdir(parents=True, exist_ok=True)
    statistics = collect_statistics(shard_patterns, label_map, report_folder, make_pipeline)
    results = run_checks(statistics, label_map, params)
    write_report(report_folder, build_report(statistics, results, label_map))
    for result in results:
        if result.status == "warned":
            logging.warning("data set check %s: %s", result.check, result.detail)
    return results


def describe_failures(results: Sequence[CheckResult]) -> str:
    """One sentence for the checks that failed, each with its first offenders; "" when none did."""
    failed = []
    for result in results:
        if result.status == "failed":
            keys = f", first in records {', '.join(result.record_keys)}" if result.record_keys else ""
            failed.append(f"check {result.check}: {result.detail}{keys}")
    return "; ".join(failed) + "." if failed else ""
