"""A labelled data set to TFRecord shards, a quarantine and a report. Beam does the work; TFX is not needed.

The main process reads the annotations and plans the shards; each Beam element is one shard, and all that comes back is
counts and rejects, in one small file. The output bytes depend on the data and the parameters, not on the workers.
"""

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.plan_shards import Shard, class_ids_by_name, plan_shards, read_data_set
from detloom.components.example_gen.sources.source_record import SourceSplit
from detloom.components.example_gen.write_shard import (
    STAGING_DIR,
    IngestOutcome,
    ShardSettings,
    SplitCounts,
    write_shard,
)
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.rejects import REPORT_FILE, Reject, write_rejects

_OUTCOME_FILE = "outcome"


@dataclass(frozen=True)
class IngestFolders:
    """Where an ingestion writes.

    Attributes:
        examples: gets the label map.
        splits: by split, get the shards; inside `examples` or on the same file system.
        rejects: gets the quarantine and the report.
    """

    examples: Path
    splits: Mapping[str, Path]
    rejects: Path


class _MergeOutcomes(beam.CombineFn):
    """Sums the outcomes of shards; the order does not matter."""

    def create_accumulator(self) -> IngestOutcome:
        return IngestOutcome()

    def add_input(self, accumulator: IngestOutcome, element: IngestOutcome) -> IngestOutcome:
        accumulator.add(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[IngestOutcome]) -> IngestOutcome:
        merged = IngestOutcome()
        for accumulator in accumulators:
            merged.add(accumulator)
        return merged

    def extract_output(self, accumulator: IngestOutcome) -> IngestOutcome:
        return accumulator


def ingest(
    folder: Path, params: ExampleGenParams, out: IngestFolders, make_pipeline: Callable[[], beam.Pipeline]
) -> dict[str, Any]:
    """Ingest one data folder and return the report, which is also written.

    Raises:
        InputError: for what the user can mend; the rejects and the report are written first where there are any.
    """
    source_splits, label_map = read_data_set(folder, params)
    shards = [shard for source in source_splits for shard in plan_shards(folder, source, params.shard_max_bytes)]
    staging = out.examples / STAGING_DIR
    _clean(out, staging)
    outcome = _write_shards(folder, params, out, label_map, shards, make_pipeline)
    write_label_map(out.examples / LABEL_MAP_FILE, label_map)
    shutil.rmtree(staging)
    report = _build_report(params, source_splits, label_map, outcome)
    rejects = [reject for source in source_splits for reject in source.rejects] + outcome.rejects
    out.rejects.mkdir(parents=True, exist_ok=True)
    write_rejects(out.rejects, rejects)
    (out.rejects / REPORT_FILE).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _check_outcome(folder, params, source_splits, report, rejects)
    return report


def _clean(out: IngestFolders, staging: Path) -> None:
    """Remove what an earlier attempt at the same place left, so that its shards do not mix with ours."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for split_folder in out.splits.values():
        split_folder.mkdir(parents=True, exist_ok=True)
        for path in split_folder.glob("data_tfrecord-*-of-*"):
            path.unlink()


def _write_shards(
    folder: Path,
    params: ExampleGenParams,
    out: IngestFolders,
    label_map: LabelMap,
    shards: list[Shard],
    make_pipeline: Callable[[], beam.Pipeline],
) -> IngestOutcome:
    staging = out.examples / STAGING_DIR
    settings = ShardSettings(
        folder=str(folder),
        split_folders={split: str(path) for split, path in out.splits.items()},
        staging=str(staging),
        class_ids=class_ids_by_name(label_map),
        max_pixels=params.max_pixels,
    )
    outcome_path = staging / _OUTCOME_FILE
    with make_pipeline() as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(shards)
            | "Spread" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, settings)
            | "MergeOutcomes" >> beam.CombineGlobally(_MergeOutcomes())
            | "WriteOutcome" >> beam.Map(_write_outcome, str(outcome_path))
        )
    outcome: IngestOutcome = pickle.loads(outcome_path.read_bytes())  # noqa: S301 - written by us, a moment ago
    return outcome


def _write_outcome(outcome: IngestOutcome, path: str) -> None:
    Path(path).write_bytes(pickle.dumps(outcome))


def _build_report(
    params: ExampleGenParams, source_splits: list[SourceSplit], label_map: LabelMap, outcome: IngestOutcome
) -> dict[str, Any]:
    splits: dict[str, Any] = {}
    reasons: Counter[str] = Counter(reject.reason.value for reject in outcome.rejects)
    for source in source_splits:
        counts = outcome.counts.get(source.split, SplitCounts())
        refused_by_reader = [reject for reject in source.rejects if reject.scope == "record"]
        counts.num_quarantined += len(refused_by_reader)
        counts.num_boxes_rejected += len(source.rejects) - len(refused_by_reader)
        counts.num_boxes_quarantined += source.num_boxes_quarantined
        reasons.update(reject.reason.value for reject in source.rejects)
        assert source.num_records_in == counts.num_written + counts.num_quarantined, (source.split, counts)
        num_boxes_out = counts.num_boxes_written + counts.num_boxes_rejected + counts.num_boxes_quarantined
        assert source.num_boxes_in == num_boxes_out, (source.split, source.num_boxes_in, counts)
        splits[source.split] = {
            "source": source.source,
            "num_in": source.num_records_in,
            "num_boxes_in": source.num_boxes_in,
            **asdict(counts),
            "repairs": dict(sorted(counts.repairs.items())),
            "boxes_by_class": {name: counts.boxes_by_class[name] for name in label_map.names},
        }
    return {
        "data_format": params.data_format,
        "num_in": sum(split["num_in"] for split in splits.values()),
        "num_written": sum(split["num_written"] for split in splits.values()),
        "num_quarantined": sum(split["num_quarantined"] for split in splits.values()),
        "num_boxes_rejected": sum(split["num_boxes_rejected"] for split in splits.values()),
        "rejects_by_reason": dict(sorted(reasons.items())),
        "splits": splits,
    }


def _check_outcome(
    folder: Path,
    params: ExampleGenParams,
    source_splits: list[SourceSplit],
    report: dict[str, Any],
    rejects: list[Reject],
) -> None:
    for source in source_splits:
        counts = report["splits"][source.split]
        if counts["num_written"] == 0:
            raise InputError(
                f"{folder / source.source}: split {source.split!r} is empty, all of its {counts['num_in']} records "
                f"were refused ({_format_reasons(report['rejects_by_reason'])})."
            )
    records = [reject for reject in rejects if reject.scope == "record"]
    _check_share(folder, params, "records", records, report["num_in"])
    boxes = [reject for reject in rejects if reject.scope == "box"]
    num_boxes_written = sum(split["num_boxes_written"] for split in report["splits"].values())
    _check_share(folder, params, "boxes", boxes, len(boxes) + num_boxes_written)


def _check_share(folder: Path, params: ExampleGenParams, what: str, rejects: list[Reject], num_read: int) -> None:
    """`what` names in the plural what was read and refused."""
    if len(rejects) <= params.max_reject_fraction * num_read:
        return
    reasons = Counter(reject.reason.value for reject in rejects)
    first = min(rejects, key=lambda r: (r.split, r.file, r.record_key, r.detail))
    raise InputError(
        f"{folder}: {len(rejects)} of {num_read} {what} ({len(rejects) / num_read:.1%}) were refused, "
        f"allowed: {params.max_reject_fraction:.1%} (max_reject_fraction); "
        f"reasons: {_format_reasons(reasons)}; the first is {first.file}: {first.detail}."
    )


def _format_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
