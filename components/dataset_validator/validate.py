"""Validate the splits of an examples folder: statistics, checks, report. Uses Beam, not TFX."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from absl import logging
from apache_beam.options.pipeline_options import PipelineOptions

from detloom.components.dataset_validator.checks import run_checks
from detloom.components.dataset_validator.drift import NO_EARLIER_SPAN, describe_drift, read_previous_report
from detloom.components.dataset_validator.findings import CheckEvidence
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report.build_report import build_report, describe_split
from detloom.components.dataset_validator.report.page_parts import DrawnImages, draw_images
from detloom.components.dataset_validator.report.validation_page import (
    MAX_SHOWN_GROUPS,
    MAX_SHOWN_MEMBERS,
    write_report,
)
from detloom.components.dataset_validator.statistics.collect_statistics import (
    PassResult,
    PassSettings,
    collect_statistics,
)
from detloom.components.dataset_validator.statistics.duplicates import Duplicates, find_duplicates
from detloom.components.dataset_validator.statistics.image_sample import choose
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.examples_folder import ExamplesFolder
from detloom.components.similarity.near_duplicates import MAX_SPLITS
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.contracts.label_map import LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Model
from detloom.schemas.run_file.data_checks import DataChecks

LOCK_FILE = ".validate.lock"  # in the folder of the report
_SPLIT_ORDER = ("train", "eval", "test")


def validate(
    shards_by_split: Mapping[str, Sequence[str]],
    label_map: LabelMap,
    params: DatasetValidatorParams,
    report_folder: str | Path,
    make_pipeline: Callable[[], beam.Pipeline],
    *,
    previous_report: str | Path | None = None,
    span: int | None = None,
    pipeline: str = "",
) -> dict[str, Any]:
    """Write `report.json` and `report.html`, log the warnings and return the report; the caller handles failures.

    Args:
        shards_by_split: TFRecord files of each split, plain or .gz.
        report_folder: folder or address, which the Beam workers can write to as well.
        previous_report: report.json of an earlier span, or its folder or address; None if there is none.
        span: span of the examples, for the report.
        pipeline: name of the pipeline for the title of the page; may be empty.

    Raises:
        FolderBusyError: if another validation writes into `report_folder`.
        InputError: if there are too many splits to compare, or `previous_report` cannot be read.
        OSError: if the report cannot be written, or the lock of `report_folder` was lost.
    """
    if len(shards_by_split) > MAX_SPLITS:
        raise InputError(f"splits: got {len(shards_by_split)}, allowed: at most {MAX_SPLITS}; merge some of them.")
    previous = read_previous_report(previous_report) if previous_report else NO_EARLIER_SPAN
    with hold_output(str(report_folder), LOCK_FILE, "validation") as check_held:
        settings = PassSettings.of_params(params)
        collected = collect_statistics(shards_by_split, label_map, settings, str(report_folder), make_pipeline)
        splits = {
            name: describe_split(
                part,
                label_map,
                has_model=params.model_input is not None,
                decodes_images=settings.decodes_images,
            )
            for name, part in collected.splits.items()
        }
        duplicates = find_duplicates(collected.images, list(splits), params.train_split, params.checks)
        described = duplicates.to_dict()
        drift = describe_drift(splits, params.train_split, previous)
        anchors = collected.anchors.to_dict(label_map) if collected.anchors else None
        evidence = CheckEvidence(
            statistics=collected.splits,
            label_map=label_map,
            params=params,
            duplicates=described,
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
            duplicates=described,
        )
        images = _draw_images(report, collected, duplicates, label_map, params.max_pixels)
        check_held()
        write_report(report_folder, report, images, pipeline)
    for check in report["checks"]:
        if check["status"] == "warned":
            logging.warning("data set check %s: %s", check["check"], check["sentence"])
    return report


def _draw_images(
    report: dict[str, Any], collected: PassResult, duplicates: Duplicates, label_map: LabelMap, max_pixels: int
) -> DrawnImages:
    """Choose and draw the images of the page, and list them in the report."""
    chosen = choose(collected.sample, label_map, list(collected.splits))
    shown = [("duplicate", place) for place in duplicates.places(MAX_SHOWN_GROUPS, MAX_SHOWN_MEMBERS)]
    places = [*shown, *chosen]
    report["images"] = [
        {"topic": topic, "split": place.split, "record_key": place.record_key} for topic, place in places
    ]
    in_grid = dict.fromkeys(place for _, place in chosen)
    return draw_images([*(place for _, place in shown), *in_grid], label_map, max_pixels=max_pixels)


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
    """Validate a folder written by ingestion, and write `report.json` and `report.html` into `output`.

    Args:
        checks: None uses the defaults.
        model: model whose input size and anchors are compared with the boxes; None skips the checks that need them.
        max_boxes: maximum number of boxes per image in training.
        splits: required splits; () requires the splits that exist.
        train_split: "" selects "train" if there is such a split, otherwise the first split.
        previous_report: report.json of an earlier state of the data, or its folder.
        make_pipeline: None runs in this process.

    Returns:
        The content of report.json; `describe_failures` summarizes the failed checks.

    Raises:
        InputError: if the folder, its label map, its splits or the earlier report are missing.
    """
    examples = ExamplesFolder(examples_dir)
    found = examples.check_splits(*([train_split] if train_split else []))
    found.sort(key=lambda name: (_SPLIT_ORDER.index(name) if name in _SPLIT_ORDER else len(_SPLIT_ORDER), name))
    names = list(dict.fromkeys([*splits, *found]))
    params = DatasetValidatorParams(
        required_splits=tuple(splits or found),
        train_split=train_split or ("train" if "train" in names else names[0]),
        checks=checks or DataChecks(),
        model_input=ModelInput.of_model(model, max_boxes) if model else None,
    )
    return validate(
        {name: examples.list_shards(name) for name in names},
        read_label_map(examples.label_map_file),
        params,
        output,
        make_pipeline or _make_in_process_pipeline,
        previous_report=previous_report,
        span=span,
    )


def _make_in_process_pipeline() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(["--direct_running_mode=in_memory"]))


def describe_failures(report: Mapping[str, Any]) -> str:
    """Return a sentence that names the failed checks and their first record keys; "" if no check failed."""
    failed = []
    for check in report["checks"]:
        if check["status"] == "failed":
            keys = f", first records: {', '.join(check['record_keys'])}" if check["record_keys"] else ""
            failed.append(f"check {check['check']}: {check['sentence']}{keys}")
    return "; ".join(failed) + "." if failed else ""
