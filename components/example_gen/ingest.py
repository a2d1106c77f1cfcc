"""A labelled data set to TFRecord shards, a quarantine and a report. Beam does the work; TFX is not needed.

One Beam job: the annotations are read in chunks, one worker plans the shards, and each shard is written by one worker.
Between the steps, records lie in files of a staging folder; what passes through Beam is numbers and names, so that
memory does not grow with the data, and every runner can do it whose workers see both folders. The output bytes depend
on the data and the parameters, not on the workers.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from absl import logging

from detloom.components.example_gen import work_files
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.follow_progress import follow_progress
from detloom.components.example_gen.ingest_job import IngestJob, SplitCounts
from detloom.components.example_gen.params import AUTO, ExampleGenParams
from detloom.components.example_gen.plan import Plan, plan, read_plan
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations, read_outcome
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import Evidence
from detloom.components.example_gen.write_shard import read_shard_outcome, write_shard
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, format_label_map
from detloom.schemas.rejects import REJECTS_FILE, REPORT_FILE

WHOLE_SPLIT = "train"  # of a data set that has no splits, where none are asked for
NO_SPLIT = "(none)"  # in the report: records refused before `split_ratios` gave them a split


@dataclass(frozen=True)
class IngestFolders:
    """Where an ingestion writes: paths, or addresses that TensorFlow's file systems know.

    Attributes:
        examples: gets the label map and a folder for each split.
        rejects: gets the quarantine and, last of all, the report: where that is, the output is complete.
    """

    examples: str
    rejects: str

    def split_folder(self, split: str) -> str:
        """Where TFX looks for a split."""
        return f"{self.examples}/Split-{split}"


@dataclass(frozen=True, kw_only=True)
class Subset:
    """The part of a data set that a replay reads again.

    Attributes:
        records: (split as the data set gives it, record key) of each.
        label_map: of the first ingestion.
    """

    records: Sequence[tuple[str, str]]
    label_map: tuple[tuple[int, str], ...]


def ingest(
    root: str | Path,
    params: ExampleGenParams,
    out: IngestFolders,
    make_pipeline: Callable[[], beam.Pipeline],
    *,
    subfolders: Sequence[str] = ("",),
    subset: Subset | None = None,
) -> dict[str, Any]:
    """Ingest one data folder, or several below `root` as one, and return the report, which is also written.

    Raises:
        InputError: for what the user can mend; the rejects and the report are written first where there are any.
    """
    root = str(root)
    data_format, evidence = _find_format(f"{root}/{subfolders[-1]}" if subfolders[-1] else root, params)
    job = _build_job(root, params, out, data_format, evidence, subfolders, subset)
    _clean(out, job)
    if subset is not None:
        with work_files.LineWriter(job.only) as file:
            for split, record_key in subset.records:
                file.write(json.dumps([split, record_key]).encode("ascii"))
    started = time.monotonic()
    num_chunks = list_chunks(job)
    _run(job, num_chunks, make_pipeline)
    report = _finish(job, num_chunks, evidence, out, {} if subset is None else {"num_asked": len(subset.records)})
    seconds = time.monotonic() - started
    logging.info(
        "%d of %d images written in %.1f s (%.0f images/s), %d quarantined",
        report["num_written"],
        report["num_in"],
        seconds,
        report["num_in"] / seconds,
        report["num_quarantined"],
    )
    _check_outcome(job, out, report)
    return report


def _find_format(folder: str, params: ExampleGenParams) -> tuple[str, Evidence]:
    """The format to read, and what the folder shows of it; an empty evidence where a forced format does not show."""
    if params.data_format == AUTO:
        data_format, evidence = formats.detect_format(DataFolder(folder))
        logging.info("%s: read as %s: %s", folder, data_format, evidence.sentence)
        return data_format, evidence
    found = formats.find_evidence(params.data_format, DataFolder(folder))
    return params.data_format, found or Evidence("given, not looked for", {})


def _build_job(
    root: str,
    params: ExampleGenParams,
    out: IngestFolders,
    data_format: str,
    evidence: Evidence,
    subfolders: Sequence[str],
    subset: Subset | None,
) -> IngestJob:
    staging = f"{out.examples}/{work_files.STAGING_DIR}"
    splits: Mapping[str, str] = params.splits or evidence.splits or {WHOLE_SPLIT: ""}
    names = params.split_ratios or splits
    return IngestJob(
        params=params,
        data_format=data_format,
        root=root,
        subfolders=tuple(subfolders),
        sources={"": params.source} if params.split_ratios else dict(splits),
        staging=staging,
        split_folders={split: out.split_folder(split) for split in names},
        only=f"{staging}/only.jsonl" if subset is not None else "",
        label_map=subset.label_map if subset is not None else (),
    )


def _clean(out: IngestFolders, job: IngestJob) -> None:
    """Remove what an earlier attempt at the same place left, the report first, so that nothing old looks finished."""
    work_files.remove_file(f"{out.rejects}/{REPORT_FILE}")
    for folder, name in ((out.rejects, REPORT_FILE), (out.rejects, REJECTS_FILE), (out.examples, LABEL_MAP_FILE)):
        for found in work_files.list_names(folder):
            if found == name or found.startswith(f"{name}."):  # the latter: what a killed writer left
                work_files.remove_file(f"{folder}/{found}")
    work_files.remove_folder(job.staging)
    for name in work_files.list_names(out.examples):
        if name.startswith("Split-"):
            for file_name in work_files.list_names(f"{out.examples}/{name}"):
                if file_name.startswith("data_tfrecord-"):
                    work_files.remove_file(f"{out.examples}/{name}/{file_name}")
            if not work_files.list_names(f"{out.examples}/{name}"):
                work_files.remove_folder(f"{out.examples}/{name}")
    work_files.make_folder(job.staging)
    for split_folder in job.split_folders.values():
        work_files.make_folder(split_folder)


def _run(job: IngestJob, num_chunks: int, make_pipeline: Callable[[], beam.Pipeline]) -> None:
    with follow_progress(job, num_chunks), make_pipeline() as pipeline:
        _ = (
            pipeline
            | "Chunks" >> beam.Create(range(num_chunks))
            | "SpreadChunks" >> beam.Reshuffle()
            | "ReadAnnotations" >> beam.Map(read_annotations, job)
            | "AllAreRead" >> beam.combiners.Count.Globally()
            | "Plan" >> beam.FlatMap(plan, job)
            | "SpreadShards" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, job)
        )


def _finish(
    job: IngestJob, num_chunks: int, evidence: Evidence, out: IngestFolders, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Put the label map, the rejects and at last the report, with `more` in it, into place; returns the report."""
    planned = read_plan(job)
    if planned.error:
        work_files.remove_folder(job.staging)
        raise InputError(planned.error)
    report, seconds = _build_report(job, num_chunks, planned, evidence)
    report.update(more)
    if job.params.decode_images:
        logging.info("Decoding every image took %.1f s of the %.1f s that workers wrote shards.", *seconds)
    if planned.label_map:
        text = format_label_map(LabelMap(tuple(planned.label_map)))
        _write_text(f"{out.examples}/{LABEL_MAP_FILE}", text)
    with work_files.LineWriter(f"{out.rejects}/{REJECTS_FILE}") as rejects:
        folder = f"{job.staging}/rejects"
        for name in work_files.list_names(folder):
            for line in work_files.read_lines(f"{folder}/{name}"):
                rejects.write(line)
    work_files.remove_folder(job.staging)
    work_files.write_json(f"{out.rejects}/{REPORT_FILE}", report)
    return report


def _write_text(path: str, text: str) -> None:
    with work_files.LineWriter(path) as file:
        file.write(text.removesuffix("\n").encode())


def _build_report(
    job: IngestJob, num_chunks: int, planned: Plan, evidence: Evidence
) -> tuple[dict[str, Any], tuple[float, float]]:
    """The report, and the seconds spent on decoding and in all."""
    counts = {split: SplitCounts() for split in job.split_folders}
    for split, part in planned.counts.items():
        counts.setdefault(split, SplitCounts()).add(part)
    decode_seconds = seconds = 0.0
    for split, num_shards in planned.num_shards.items():
        for index in range(num_shards):
            outcome = read_shard_outcome(job.shard_outcome_file(split, index))
            counts[split].add(outcome.counts)
            seconds += outcome.seconds
            decode_seconds += outcome.decode_seconds
    if not any(vars(counts.get("", SplitCounts())).values()):
        counts.pop("", None)
    total = SplitCounts()
    for part in counts.values():
        total.add(part)
    num_boxes_in = _count_boxes_in(job, num_chunks)
    # Nothing is lost: what the readers counted is what the writers and the quarantine hold.
    assert planned.num_in == total.num_written + total.num_quarantined, (planned.num_in, total)
    num_boxes_out = total.num_boxes_written + total.num_boxes_rejected + total.num_boxes_quarantined
    assert num_boxes_in == num_boxes_out + total.num_boxes_left_out, (num_boxes_in, total)
    names = [name for _, name in planned.label_map]
    report = {
        "data_format": job.data_format,
        "evidence": evidence.sentence,
        "sources": dict(job.sources),
        "num_in": planned.num_in,
        "num_written": total.num_written,
        "num_quarantined": total.num_quarantined,
        "num_boxes_in": num_boxes_in,
        "num_boxes_written": total.num_boxes_written,
        "num_boxes_rejected": total.num_boxes_rejected,
        "num_boxes_quarantined": total.num_boxes_quarantined,
        "num_boxes_left_out": total.num_boxes_left_out,
        "rejects_by_reason": dict(sorted(total.rejects_by_reason.items())),
        "repairs": dict(sorted(total.repairs.items())),
        "left_out": dict(sorted(total.left_out.items())),
        "splits": {split or NO_SPLIT: _describe_split(part, names) for split, part in counts.items()},
        "label_map": [list(pair) for pair in planned.label_map],
        "root": job.root,
        "subfolders": list(job.subfolders),
        "params": job.params.to_properties(),
    }
    return report, (decode_seconds, seconds)


def _describe_split(counts: SplitCounts, class_names: list[str]) -> dict[str, Any]:
    return {
        "num_in": counts.num_written + counts.num_quarantined,
        **counts.to_json(),
        "repairs": dict(sorted(counts.repairs.items())),
        "left_out": dict(sorted(counts.left_out.items())),
        "rejects_by_reason": dict(sorted(counts.rejects_by_reason.items())),
        "boxes_by_class": {name: counts.boxes_by_class[name] for name in class_names},
    }


def _count_boxes_in(job: IngestJob, num_chunks: int) -> int:
    total = 0
    for index in range(num_chunks):
        outcome = read_outcome(job, index)
        total += sum(outcome.boxes_by_class.values())
        total += outcome.counts.num_boxes_rejected + outcome.counts.num_boxes_quarantined
    return total


def _check_outcome(job: IngestJob, out: IngestFolders, report: Mapping[str, Any]) -> None:
    """The budget of rejects. A replay has none: what it reads was refused before."""
    if job.only:
        return
    for split in job.split_folders:
        counts = report["splits"][split]
        if counts["num_written"] == 0:
            source = f" ({job.sources[split]})" if job.sources.get(split) else ""
            raise InputError(
                f"{job.root}: split {split!r}{source} is empty, all of its {counts['num_in']} records were refused "
                f"({_format_reasons(counts['rejects_by_reason'] or report['rejects_by_reason'])})."
            )
    quarantined, rejected = report["num_quarantined"], report["num_boxes_rejected"]
    _check_share(job, out, "record", quarantined, report["num_in"])
    _check_share(job, out, "box", rejected, rejected + report["num_boxes_written"])


def _check_share(job: IngestJob, out: IngestFolders, scope: str, num_refused: int, num_read: int) -> None:
    if num_refused <= job.params.max_reject_fraction * num_read:
        return
    reasons: Counter[str] = Counter()
    first: dict[str, Any] = {}
    for line in work_files.read_lines(f"{out.rejects}/{REJECTS_FILE}"):
        reject = json.loads(line)
        if reject["scope"] == scope:
            reasons[reject["reason"]] += 1
            first = first or reject
    raise InputError(
        f"{job.root}: {num_refused} of {num_read} {'records' if scope == 'record' else 'boxes'} "
        f"({num_refused / num_read:.1%}) were refused, allowed: {job.params.max_reject_fraction:.1%} "
        f"(max_reject_fraction); reasons: {_format_reasons(reasons)}; the first is {first['file']}: {first['detail']}."
    )


def _format_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
