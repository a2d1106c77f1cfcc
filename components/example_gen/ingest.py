"""A labelled data set to TFRecord shards, a quarantine and a report. Beam does the work; TFX is not needed.

One Beam job: the annotations are read in chunks, one worker plans the shards, and each shard is written by one worker.
Between the steps, records lie in files of a staging folder; what passes through Beam is numbers and names, so that
memory does not grow with the data, and every runner can do it whose workers see both folders. The output bytes depend
on the data and the parameters, not on the workers.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from absl import logging

from detloom.components.example_gen import work_files
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.follow_progress import follow_progress
from detloom.components.example_gen.ingest_job import IngestJob, SplitCounts
from detloom.components.example_gen.params import AUTO, ExampleGenParams, check_split_name
from detloom.components.example_gen.plan import Plan, plan, read_plan
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations
from detloom.components.example_gen.refusal import RefusedDataError, find_refusal
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
        rejects: gets the quarantine and, last of all, the report: where that is, and its `error` is "", the output is
            complete and sound.
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
        RefusedDataError: an InputError, with the report: too much was refused, or a split is empty. All is written.
        InputError: for what the user can mend besides; then nothing is written.
    """
    root = str(root)
    for subfolder in subfolders:
        _check_apart(f"{root}/{subfolder}" if subfolder else root, out)
    data_format, evidence = _find_format(f"{root}/{subfolders[-1]}" if subfolders[-1] else root, params)
    job = _build_job(root, params, out, data_format, evidence, subfolders, subset)
    work_files.remove_folder(job.staging)
    work_files.make_folder(job.staging)
    if subset is not None:
        with work_files.LineWriter(job.only) as file:
            for split, record_key in subset.records:
                file.write(json.dumps([split, record_key]).encode("ascii"))
    started = time.monotonic()
    num_chunks, has_many_sources = list_chunks(job)
    job = replace(job, has_many_sources=has_many_sources)
    _clean(out)  # only now: a source that is not there leaves what an earlier ingestion wrote
    _run(job, num_chunks, make_pipeline)
    report = _build_report(job, evidence, {} if subset is None else {"num_asked": len(subset.records)})
    _publish(job, out, report)
    seconds = time.monotonic() - started
    logging.info(
        "%d of %d images written in %.1f s (%.0f images/s), %d quarantined",
        report["num_written"],
        report["num_in"],
        seconds,
        report["num_in"] / seconds,
        report["num_quarantined"],
    )
    if report["error"]:
        raise RefusedDataError(report["error"], report)
    return report


def _check_apart(root: str, out: IngestFolders) -> None:
    """An output over its input would remove it, one inside would be read the next time."""
    if not out.examples:
        raise InputError("the output is an empty name, allowed: a folder.")
    if "://" in root or "://" in out.examples:
        source, target = root.rstrip("/"), out.examples.rstrip("/")
    else:
        source, target = os.path.realpath(root), os.path.realpath(out.examples)
        nearest = target
        while not os.path.lexists(nearest):
            nearest = os.path.dirname(nearest)
        if not os.path.isdir(nearest):
            raise InputError(f"{out.examples}: {nearest} is no folder; give another output.")
    if source == target or source.startswith(target + "/") or target.startswith(source + "/"):
        raise InputError(f"{out.examples}: the output and the data folder {root} overlap; give a folder of its own.")


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
    for name in evidence.splits if not (params.splits or params.split_ratios) else ():
        check_split_name(name, f"{root}: the data set's own splits")
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
        # A name of its own, since workers that live on keep what they read of it.
        only=f"{staging}/only-{uuid.uuid4().hex}.jsonl" if subset is not None else "",
        label_map=subset.label_map if subset is not None else (),
    )


def _clean(out: IngestFolders) -> None:
    """Remove what an earlier attempt at the same place left, the report first, so that nothing old looks finished."""
    work_files.remove_file(f"{out.rejects}/{REPORT_FILE}")
    for folder, name in ((out.rejects, REPORT_FILE), (out.rejects, REJECTS_FILE), (out.examples, LABEL_MAP_FILE)):
        for found in work_files.list_names(folder):
            if found == name or found.startswith(f"{name}."):  # the latter: what a killed writer left
                work_files.remove_file(f"{folder}/{found}")
    for name in work_files.list_names(out.examples):
        if name.startswith("Split-"):
            for file_name in work_files.list_names(f"{out.examples}/{name}"):
                if file_name.startswith("data_tfrecord-"):
                    work_files.remove_file(f"{out.examples}/{name}/{file_name}")
            if not work_files.list_names(f"{out.examples}/{name}"):
                work_files.remove_folder(f"{out.examples}/{name}")


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


def _build_report(job: IngestJob, evidence: Evidence, more: Mapping[str, Any]) -> dict[str, Any]:
    """The report, with `more` in it. Its `error` says why the data are refused; "" where they are not."""
    planned = read_plan(job)
    if planned.error:
        work_files.remove_folder(job.staging)
        raise InputError(planned.error)
    counts = _add_counts(job, planned)
    total = SplitCounts()
    for part in counts.values():
        total.add(part)
    # Nothing is lost: what the readers counted is what the writers and the quarantine hold.
    assert planned.num_in == total.num_written + total.num_quarantined, (planned.num_in, total)
    num_boxes_out = total.num_boxes_written + total.num_boxes_rejected + total.num_boxes_quarantined
    assert planned.num_boxes_in == num_boxes_out + total.num_boxes_left_out, (planned.num_boxes_in, total)
    names = [name for _, name in planned.label_map]
    report: dict[str, Any] = {
        "error": "",
        "data_format": job.data_format,
        "evidence": evidence.sentence,
        "sources": dict(job.sources),
        "num_in": planned.num_in,
        "num_written": total.num_written,
        "num_quarantined": total.num_quarantined,
        "num_boxes_in": planned.num_boxes_in,
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
        **more,
    }
    return {**report, "error": find_refusal(job, report)}


def _add_counts(job: IngestJob, planned: Plan) -> dict[str, SplitCounts]:
    """Counts of all steps by split; the split is "" for records that were refused before they had one."""
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
    if job.params.decode_images:
        logging.info(
            "Decoding every image took %.1f s of the %.1f s that workers wrote shards.", decode_seconds, seconds
        )
    return counts


def _publish(job: IngestJob, out: IngestFolders, report: Mapping[str, Any]) -> None:
    """Put shards, label map and rejects into place, and at last the report; renames, for the most part."""
    for split, split_folder in job.split_folders.items():
        work_files.make_folder(split_folder)
        finished = job.finished_shard(split, "").rstrip("/")
        for name in work_files.list_names(finished):
            work_files.rename(f"{finished}/{name}", f"{split_folder}/{name}")
    if report["label_map"]:
        label_map = LabelMap(tuple((class_id, name) for class_id, name in report["label_map"]))
        with work_files.LineWriter(f"{out.examples}/{LABEL_MAP_FILE}") as file:
            file.write(format_label_map(label_map).removesuffix("\n").encode())
    with work_files.LineWriter(f"{out.rejects}/{REJECTS_FILE}") as rejects:
        folder = f"{job.staging}/rejects"
        for name in work_files.list_names(folder):
            for line in work_files.read_lines(f"{folder}/{name}"):
                rejects.write(line)
    work_files.remove_folder(job.staging)
    work_files.write_json(f"{out.rejects}/{REPORT_FILE}", report)


def _describe_split(counts: SplitCounts, class_names: list[str]) -> dict[str, Any]:
    return {
        "num_in": counts.num_written + counts.num_quarantined,
        **counts.to_json(),
        "repairs": dict(sorted(counts.repairs.items())),
        "left_out": dict(sorted(counts.left_out.items())),
        "rejects_by_reason": dict(sorted(counts.rejects_by_reason.items())),
        "boxes_by_class": {name: counts.boxes_by_class[name] for name in class_names},
    }
