"""Convert a labelled data set to TFRecord shards, a quarantine and a report, with Beam and without TFX.

One Beam job reads the annotations in chunks, plans the shards in one worker, and writes each shard in one worker.
Between the steps, records are kept in files of a staging folder. Beam only passes numbers and names, so memory does not
grow with the data, and any runner works whose workers see both folders. The output bytes depend on the data and the
parameters, not on the workers.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from absl import logging

from detloom.components.beam_job import cancel_unfinished_jobs, explain_job_failure
from detloom.components.example_gen.classes import explain_no_objects, find_similar_names
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.follow_progress import follow_progress
from detloom.components.example_gen.hash_images import hash_images, list_blocks
from detloom.components.example_gen.ingest_job import REJECTS_DIR, STAGING_DIR, IngestJob, SplitCounts
from detloom.components.example_gen.params import TRAIN, ExampleGenParams, check_split_name
from detloom.components.example_gen.plan import Plan, Shard, plan, read_plan
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.name_index import describe_some
from detloom.components.example_gen.sources.source_record import FormatEvidence
from detloom.components.example_gen.unlisted import Unlisted
from detloom.components.example_gen.write_shard import read_shard_outcome, write_shard
from detloom.components.examples_folder import SHARD_PREFIX, SPLIT_PREFIX
from detloom.components.storage.many_files import map_files, read_lines_of_files
from detloom.components.storage.output_lock import hold_output
from detloom.components.storage.storage import is_address, open_storage
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, format_label_map
from detloom.schemas.contracts.rejects import NO_SPLIT, REJECTS_FILE, REPORT_FILE, Reject, parse_reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import name_setting

_LOCK_FILE = ".ingest.lock"
WHOLE_SPLIT = TRAIN  # name of the only split, if the data set has no splits and none are requested


@dataclass(frozen=True)
class IngestFolders:
    """The output folders of an ingestion: paths, or addresses of TensorFlow's file systems.

    Attributes:
        examples: receives the label map and a folder for each split.
        rejects: receives the quarantine and, last, the report: if it exists and its `error` is "", the output is
            complete and valid.
    """

    examples: str
    rejects: str


def ingest(
    root: str | Path,
    params: ExampleGenParams,
    out: IngestFolders,
    make_pipeline: Callable[[], beam.Pipeline],
    *,
    subfolders: Sequence[str] = ("",),
) -> dict[str, Any]:
    """Ingest one data folder, or several below `root` as one; write and return the report.

    Raises:
        RefusedDataError: an InputError with the report: too much was rejected, or a split is empty. All files are
            written.
        InputError: for any other user error; nothing is written then.
        OSError: a file cannot be written, or the lock of the output was lost; there is no report then.
    """
    root = str(root)
    for subfolder in subfolders:
        _check_apart(f"{root}/{subfolder}" if subfolder else root, out)
    data_format, evidence = find_format(f"{root}/{subfolders[-1]}" if subfolders[-1] else root, params)
    job = build_job(root, params, out, data_format, evidence, subfolders)
    with hold_output(out.examples, _LOCK_FILE, "ingestion") as check_held:
        _check_has_no_links(out)
        report = _write(job, out, evidence, make_pipeline, check_held)
    if report["error"]:
        raise RefusedDataError(report["error"], report)
    return report


def _write(
    job: IngestJob,
    out: IngestFolders,
    evidence: FormatEvidence,
    make_pipeline: Callable[[], beam.Pipeline],
    check_held: Callable[[], None],
) -> dict[str, Any]:
    """Write all files of the ingestion, the report last, and return the report."""
    job.staging.delete_tree()
    job.staging.make_folder()
    started = time.monotonic()
    num_chunks, has_many_sources = list_chunks(job)
    job = replace(job, has_many_sources=has_many_sources)
    check_held()
    _clean(out)  # only now: if a source is missing, the output of an earlier ingestion is kept
    _run(job, num_chunks, make_pipeline)
    check_held()
    report = _build_report(job, evidence)
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
    return report


def _check_apart(root: str, out: IngestFolders) -> None:
    """Raise if output and input overlap: the output would delete the input, or would be read the next time."""
    if not out.examples:
        raise InputError("the output is an empty name, allowed: a folder.")
    if is_address(root) or is_address(out.examples):
        source, target = root.rstrip("/"), out.examples.rstrip("/")
    else:
        source, target = os.path.realpath(root), os.path.realpath(out.examples)
        nearest = target
        while not os.path.lexists(nearest):
            nearest = os.path.dirname(nearest)
        if not os.path.isdir(nearest):
            raise InputError(f"{out.examples}: {nearest} is not a folder; choose another output.")
    if source == target or source.startswith(target + "/") or target.startswith(source + "/"):
        raise InputError(f"{out.examples}: the output and the data folder {root} overlap; choose a separate folder.")


def _check_has_no_links(out: IngestFolders) -> None:
    """Raise if a folder of the output is a link: files of an earlier ingestion are deleted there, and new ones written.

    The output itself may be a link, because its name was given by the user.
    """
    names = [] if is_address(out.examples) else open_storage(out.examples).list_names()
    splits = (f"{out.examples}/{name}" for name in names if name.startswith(SPLIT_PREFIX))
    for path in filter(os.path.islink, (out.rejects, *splits)):
        target = os.readlink(path)
        raise InputError(f"{path}: this is a link to {target}, allowed: a folder; remove it or choose another output.")


def find_format(folder: str, params: ExampleGenParams) -> tuple[str, FormatEvidence]:
    """Return the format to read and the evidence for it, which is empty if a given format is not recognizable."""
    if params.format == formats.AUTO:
        data_format, evidence = formats.detect_format(DataFolder(folder))
        logging.info("%s: read as %s: %s", folder, data_format, evidence.sentence)
        return data_format, evidence
    found = formats.FORMATS[params.format].detect(DataFolder(folder))
    return params.format, found or FormatEvidence("given by the user, not detected", {})


def build_job(
    root: str,
    params: ExampleGenParams,
    out: IngestFolders,
    data_format: str,
    evidence: FormatEvidence,
    subfolders: Sequence[str],
) -> IngestJob:
    for name in evidence.splits if not (params.splits or params.split_by_ratio) else ():
        check_split_name(name, f"{root}: the data set's own splits")
    splits: Mapping[str, str] = params.splits or evidence.splits or {WHOLE_SPLIT: ""}
    sources = {"": params.source} if params.split_by_ratio else dict(splits)
    names = params.split_by_ratio or (*splits, *params.cut_from_train)
    if params.cut_from_train and TRAIN not in splits:
        raise InputError(f"{root}: cut_from_train needs a split {TRAIN}; the data set has {', '.join(splits)}.")
    if taken := sorted(params.cut_from_train.keys() & splits.keys()):
        raise InputError(f"{root}: cut_from_train: the data set has the split {taken[0]} itself; leave it out.")
    return IngestJob(
        params=params,
        data_format=data_format,
        root=root,
        subfolders=tuple(subfolders),
        sources=sources,
        examples=out.examples,
        output_splits=tuple(names),
        is_whole="" in sources.values() or set(evidence.splits.values()) <= set(sources.values()),
    )


def _clean(out: IngestFolders) -> None:
    """Delete the output of an earlier attempt, the report first, so that old output never looks complete."""
    examples, rejects = open_storage(out.examples), open_storage(out.rejects)
    rejects.delete(REPORT_FILE)
    for storage, name in ((rejects, REPORT_FILE), (rejects, REJECTS_FILE), (examples, LABEL_MAP_FILE)):
        for found in storage.list_names(with_hidden=True):
            if found == name or found.removeprefix(".").startswith(f"{name}."):  # the second: files of a killed writer
                storage.delete(found)
    for folder in examples.list_names():
        if folder.startswith(SPLIT_PREFIX) and examples.is_folder(folder):
            shards = (f"{folder}/{name}" for name in examples.list_names(folder) if name.startswith(SHARD_PREFIX))
            deque(map_files(examples, examples.delete, shards), maxlen=0)
            if not examples.list_names(folder, with_hidden=True):
                examples.delete_tree(folder)


def _run(job: IngestJob, num_chunks: int, make_pipeline: Callable[[], beam.Pipeline]) -> None:
    with (
        explain_job_failure(),
        cancel_unfinished_jobs(),
        follow_progress(job, num_chunks),
        make_pipeline() as pipeline,
    ):
        chunks = (
            pipeline
            | "Job" >> beam.Create([num_chunks])
            | "Chunks" >> beam.FlatMap(_number_chunks)
            | "SpreadChunks" >> beam.Reshuffle()
        )
        read = chunks | "ReadAnnotations" >> beam.Map(read_annotations, job)
        if job.joins_duplicates:
            read = (
                read
                | "ListBlocks" >> beam.FlatMap(list_blocks, job)
                | "SpreadBlocks" >> beam.Reshuffle()
                | "HashImages" >> beam.Map(hash_images, job)
            )
        _ = (
            read
            | "AllAreRead" >> beam.combiners.Count.Globally()
            | "Plan" >> beam.FlatMap(_plan, num_chunks, job)
            | "SpreadShards" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, job)
        )


def _number_chunks(num_chunks: int) -> Iterable[int]:
    return range(num_chunks)


def _plan(_: int, num_chunks: int, job: IngestJob) -> list[Shard]:
    return plan(num_chunks, job)


def _build_report(job: IngestJob, evidence: FormatEvidence) -> dict[str, Any]:
    """Build the report. Its `error` says why the data are refused, or is ""."""
    planned = read_plan(job)
    if planned.error:
        job.staging.delete_tree()
        raise InputError(planned.error)
    counts = _add_counts(job, planned)
    total = SplitCounts()
    for part in counts.values():
        total.add(part)
    # No record or box is lost: the readers' counts equal those of the writers and the quarantine.
    assert planned.num_in == total.num_written + total.num_quarantined, (planned.num_in, total)
    num_boxes_out = total.num_boxes_written + total.num_boxes_rejected + total.num_boxes_quarantined
    assert planned.num_boxes_in == num_boxes_out + total.num_boxes_left_out, (planned.num_boxes_in, total)
    names = [name for _, name in planned.label_map]
    if planned.unlisted.num_images:
        first = describe_some(planned.unlisted.first)
        logging.warning("%s: %d images have no label, such as %s", job.root, planned.unlisted.num_images, first)
    similar_names = find_similar_names(names)
    for group in similar_names:
        logging.warning(
            "%s: %s are different classes, although their names differ only in case, spaces or Unicode form; if they "
            "are one class, correct the labels.",
            job.root,
            ", ".join(map(ascii, group)),
        )
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
        "num_unlisted_images": planned.unlisted.num_images,
        "unlisted_images": planned.unlisted.first,
        "similar_class_names": similar_names,
        "label_map": [list(pair) for pair in planned.label_map],
        "root": job.root,
        "subfolders": list(job.subfolders),
        "params": job.params.to_properties(),
    }
    return {**report, "error": find_refusal(job, report, planned.unlisted)}


def _add_counts(job: IngestJob, planned: Plan) -> dict[str, SplitCounts]:
    """Add up the counts of all steps by split; the split is "" for records rejected before they had one."""
    counts = {split: SplitCounts() for split in job.output_splits}
    for split, part in planned.counts.items():
        counts.setdefault(split, SplitCounts()).add(part)
    for split, num_shards in planned.num_shards.items():
        paths = (job.shard_outcome_file(split, index) for index in range(num_shards))
        for part in map_files(job.staging, partial(read_shard_outcome, job), paths):
            counts[split].add(part)
    if not any(vars(counts.get("", SplitCounts())).values()):
        counts.pop("", None)
    return counts


def _publish(job: IngestJob, out: IngestFolders, report: Mapping[str, Any]) -> None:
    """Move shards, label map and rejects to their final places, then write the report; mostly renames."""
    examples, rejects = open_storage(out.examples), open_storage(out.rejects)
    for split in job.output_splits:
        examples.make_folder(f"{SPLIT_PREFIX}{split}")
        finished, final = f"{STAGING_DIR}/{job.finished_shard(split, '')}", f"{SPLIT_PREFIX}{split}/"
        names = job.staging.list_names(job.finished_shard(split, ""))
        renames = ((finished + name, final + name) for name in names)
        deque(map_files(examples, lambda paths: examples.rename(*paths), renames), maxlen=0)
    if report["label_map"]:
        label_map = LabelMap(tuple((class_id, name) for class_id, name in report["label_map"]))
        with examples.open_to_write(LABEL_MAP_FILE) as file:
            file.write(format_label_map(label_map).removesuffix("\n").encode() + b"\n")
    with rejects.open_to_write(REJECTS_FILE) as file:
        for line in read_rejects(job):
            file.write(line + b"\n")
    job.staging.delete_tree()
    rejects.write_json(REPORT_FILE, report)


def _describe_split(counts: SplitCounts, class_names: list[str]) -> dict[str, Any]:
    return {
        "num_in": counts.num_written + counts.num_quarantined,
        **vars(counts),
        "repairs": dict(sorted(counts.repairs.items())),
        "left_out": dict(sorted(counts.left_out.items())),
        "rejects_by_reason": dict(sorted(counts.rejects_by_reason.items())),
        "boxes_by_class": {name: counts.boxes_by_class[name] for name in class_names},
    }


class RefusedDataError(InputError):
    """Too much of the data was rejected; all files were written, and the report contains this sentence."""

    def __init__(self, message: str, report: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.report = report


def read_rejects(job: IngestJob) -> Iterator[bytes]:
    """Yield the lines of the quarantine from the staging folder, in the order of steps and parts."""
    return read_lines_of_files(job.staging, REJECTS_DIR)


def find_refusal(job: IngestJob, report: Mapping[str, Any], unlisted: Unlisted) -> str:
    """Return why the data are refused, in one sentence, or ""."""
    for split in job.output_splits:
        counts = report["splits"][split]
        if counts["num_written"] == 0:
            return f"{job.root}: split {split!r}{_why_empty(job, split, counts, report)}."
    quarantined, rejected = report["num_quarantined"], report["num_boxes_rejected"]
    return (
        _check_share(job, "record", quarantined, report["num_in"])
        or _check_share(job, "box", rejected, rejected + report["num_boxes_written"])
        or _check_unlisted(job, report["num_in"], unlisted)
        or ("" if report["num_boxes_written"] else explain_no_objects(job, report["num_in"], report["left_out"]))
    )


def _check_unlisted(job: IngestJob, num_in: int, unlisted: Unlisted) -> str:
    num_images = num_in + unlisted.num_images - unlisted.num_records
    if not job.is_whole or unlisted.num_images <= job.params.max_unlisted_fraction * num_images:
        return ""
    return (
        f"{job.root}: {unlisted.num_images} of {num_images} images have no label, such as "
        f"{describe_some(unlisted.first)}, allowed: {job.params.max_unlisted_fraction:.1%}; check where their labels "
        f"are, or set {name_setting('max_unlisted_fraction')}."
    )


def _why_empty(job: IngestJob, split: str, counts: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    if counts["num_in"]:
        source = f" ({job.sources[split]})" if job.sources.get(split) else ""
        reasons = _format_reasons(counts["rejects_by_reason"])
        return f"{source} is empty, all of its {counts['num_in']} records were rejected ({reasons})"
    if report["num_written"]:
        are_joined = job.joins_duplicates and not job.params.separate_near_duplicates
        near = ", or set separate_near_duplicates if most images look alike" if are_joined else ""
        return f" got none of the {report['num_written']} records; give it a larger share, or use another seed{near}"
    reasons = _format_reasons(report["rejects_by_reason"])
    return f" is empty, all {report['num_in']} records were rejected ({reasons})"


def _check_share(job: IngestJob, scope: str, num_refused: int, num_read: int) -> str:
    if num_refused <= job.params.max_reject_fraction * num_read:
        return ""
    reasons: dict[str, int] = {}
    first: Reject | None = None
    for line in read_rejects(job):
        reject = parse_reject(line)
        if reject.scope == scope:
            count = 1 if scope == "record" else reject.num_boxes
            reasons[reject.reason.value] = reasons.get(reject.reason.value, 0) + count
            first = first or reject
    assert first is not None
    return (
        f"{job.root}: {num_refused} of {num_read} {'records' if scope == 'record' else 'boxes'} "
        f"({num_refused / num_read:.1%}) were rejected, allowed: {job.params.max_reject_fraction:.1%} "
        f"(max_reject_fraction); reasons: {_format_reasons(reasons)}; the first is {first.file}: {first.detail}."
    )


def _format_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
