"""Validate the splits of one examples folder: statistics, checks, report. Beam, but no TFX."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from absl import logging
from apache_beam.options.pipeline_options import PipelineOptions

from detloom.components.dataset_validator.build_report import build_report, describe_split
from detloom.components.dataset_validator.checks import run_checks
from detloom.components.dataset_validator.collect_statistics import Collected, PassSettings, collect_statistics
from detloom.components.dataset_validator.drift import NO_EARLIER_SPAN, describe_drift, read_previous_report
from detloom.components.dataset_validator.duplicates import Duplicates, find_duplicates
from detloom.components.dataset_validator.findings import Evidence
from detloom.components.dataset_validator.model_input import ModelInput
from detloom.components.dataset_validator.near_duplicates import MAX_SPLITS
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report import write_report
from detloom.components.dataset_validator.sample_pictures import choose, draw_pictures
from detloom.components.record_files import list_shards
from detloom.schemas.config import Model
from detloom.schemas.data_checks import DataChecks
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, read_label_map

_SPLIT_PREFIX = "Split-"  # of TFX's split folders
_USUAL_ORDER = ("train", "eval", "test")
_SHOWN_GROUPS, _SHOWN_MEMBERS = 6, 4  # of duplicates with pictures


def validate(
    shards_by_split: Mapping[str, Sequence[str]],
    label_map: LabelMap,
    params: DatasetValidatorParams,
    report_folder: Path,
    make_pipeline: Callable[[], beam.Pipeline],
    *,
    previous_report: Path | None = None,
    span: int | None = None,
) -> dict[str, Any]:
    """Write `report.json` and `report.html`, log the warnings, and return the report; failures are for the caller.

    Args:
        shards_by_split: its TFRecord files, plain or .gz.
        previous_report: of an earlier span, or its folder; None where there is none.
        span: of the examples, for the report.

    Raises:
        InputError: more splits than can be compared, or no earlier report where one is named.
    """
    if len(shards_by_split) > MAX_SPLITS:
        raise InputError(f"splits: got {len(shards_by_split)}, allowed: at most {MAX_SPLITS}; merge some of them.")
    previous = read_previous_report(previous_report) if previous_report else NO_EARLIER_SPAN
    report_folder.mkdir(parents=True, exist_ok=True)
    settings = PassSettings.of_params(params)
    collected = collect_statistics(shards_by_split, label_map, settings, report_folder, make_pipeline)
    splits = {
        name: describe_split(part, label_map, has_model=params.model_input is not None, has_looks=settings.looks)
        for name, part in collected.splits.items()
    }
    duplicates = find_duplicates(collected.images, list(splits), params.train_split, params.checks)
    drift = describe_drift(splits, params.train_split, previous)
    anchors = collected.anchors.to_dict(label_map) if collected.anchors else None
    evidence = Evidence(
        statistics=collected.splits,
        label_map=label_map,
        params=params,
        exact=duplicates.to_dict()["exact"],
        near=duplicates.to_dict()["near"],
        drift=drift,
        anchors=anchors,
    )
    report = build_report(
        splits,
        run_checks(evidence),
        label_map,
        params,
        span=span,
        drift=drift,
        anchors=anchors,
        duplicates=duplicates.to_dict(),
    )
    _write_with_pictures(report_folder, report, collected, duplicates, label_map, params.max_pixels)
    for check in report["checks"]:
        if check["status"] == "warned":
            logging.warning("data set check %s: %s", check["check"], check["sentence"])
    return report


def _write_with_pictures(
    folder: Path,
    report: dict[str, Any],
    collected: Collected,
    duplicates: Duplicates,
    label_map: LabelMap,
    max_pixels: int,
) -> None:
    chosen = choose(collected.sample, label_map, list(collected.splits))
    shown = [("duplicate", place) for place in duplicates.places(_SHOWN_GROUPS, _SHOWN_MEMBERS)]
    places = [*shown, *chosen]
    report["pictures"] = [
        {"topic": topic, "split": place.split, "record_key": place.record_key} for topic, place in places
    ]
    pictures = draw_pictures([place for _, place in places], label_map, max_pixels=max_pixels)
    write_report(folder, report, pictures)


def validate_examples(
    examples_dir: Path,
    output: Path,
    *,
    checks: DataChecks | None = None,
    model: Model | None = None,
    max_boxes: int = 100,
    splits: Sequence[str] = (),
    train_split: str = "",
    previous_report: Path | None = None,
    span: int | None = None,
    make_pipeline: Callable[[], beam.Pipeline] | None = None,
) -> dict[str, Any]:
    """Validate a folder as ingestion writes it, and write `report.json` and `report.html` into `output`.

    Args:
        checks: None is the defaults.
        model: its input and anchors are what boxes are judged by; None skips the checks that need them.
        max_boxes: that training takes of one picture.
        splits: those that must be there; () is all that are.
        train_split: "" is "train" where there is such a split, else the first.
        previous_report: `report.json` of an earlier state of the data, or its folder.
        make_pipeline: None runs in this process.

    Returns:
        What is in report.json; `describe_failures` has a sentence for what failed.

    Raises:
        InputError: no such folder, no label map or no splits in it, no earlier report where one is named.
    """
    found = [path.name.removeprefix(_SPLIT_PREFIX) for path in examples_dir.glob(f"{_SPLIT_PREFIX}*")]
    found.sort(key=lambda name: (_USUAL_ORDER.index(name) if name in _USUAL_ORDER else len(_USUAL_ORDER), name))
    if not found:
        raise InputError(
            f"{examples_dir}: no {_SPLIT_PREFIX}* folder, needed: examples as DetectionExampleGen or `detloom ingest` "
            "write them."
        )
    names = list(dict.fromkeys([*splits, *found]))
    params = DatasetValidatorParams(
        required_splits=tuple(splits or found),
        train_split=train_split or ("train" if "train" in names else names[0]),
        checks=checks or DataChecks(),
        model_input=ModelInput.of_model(model, max_boxes) if model else None,
    )
    return validate(
        {name: list_shards(examples_dir / f"{_SPLIT_PREFIX}{name}") for name in names},
        read_label_map(examples_dir / LABEL_MAP_FILE),
        params,
        output,
        make_pipeline or _make_pipeline_here,
        previous_report=previous_report,
        span=span,
    )


def _make_pipeline_here() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(["--direct_running_mode=in_memory"]))


def describe_failures(report: Mapping[str, Any]) -> str:
    """One sentence for the checks that failed, each with its first offenders; "" when none did."""
    failed = []
    for check in report["checks"]:
        if check["status"] == "failed":
            keys = f", first in records {', '.join(check['record_keys'])}" if check["record_keys"] else ""
            failed.append(f"check {check['check']}: {check['sentence']}{keys}")
    return "; ".join(failed) + "." if failed else ""
