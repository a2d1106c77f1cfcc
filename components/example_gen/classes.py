"""Summarize the annotations and determine the classes of an ingestion and their ids."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.components.example_gen.ingest_job import IngestJob, SplitCounts
from detloom.components.example_gen.read_annotations import ReadOutcome
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import LEFT_OUT_CLASS, TOO_MANY_CLASSES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import name_setting

_OTHERWISE = f"to go on without such boxes, set {name_setting('unknown_class')} to reject or leave_out."


@dataclass
class ReadSummary:
    """The combined outcomes of all chunks; its memory depends only on the number of classes.

    Attributes:
        num_in: records by the data set's own split, including rejected ones.
        num_boxes_in: objects, including rejected ones.
        counts: what the readers rejected, by the data set's own split.
        declared: id (None if the format has none) and source by class name, in the order of declaration.
        first_use: by class name, the annotation file and record key of its first object.
        first_unknown: file and detail of the first box that a reader rejected for its class.
        first_reject: file and detail of what was rejected first.
        boxes_by_split, fractions_by_split: boxes of the records, and those that `ReadOutcome.num_fractions` counts.
    """

    num_in: Counter[str] = field(default_factory=Counter)
    num_boxes_in: int = 0
    counts: dict[str, SplitCounts] = field(default_factory=dict)
    declared: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    boxes_by_class: Counter[str] = field(default_factory=Counter)
    first_use: dict[str, tuple[str, str]] = field(default_factory=dict)
    first_unknown: tuple[str, str] | None = None
    first_reject: tuple[str, str] | None = None
    boxes_by_split: Counter[str] = field(default_factory=Counter)
    fractions_by_split: Counter[str] = field(default_factory=Counter)

    @property
    def all_are_refused(self) -> bool:
        return sum(self.num_in.values()) == sum(part.num_quarantined for part in self.counts.values())


def merge_outcomes(outcomes: Iterable[ReadOutcome], job: IngestJob) -> ReadSummary:
    """Combine the outcomes of all chunks.

    Raises:
        InputError: for damage that a reader found, contradictory class ids, or too many classes.
    """
    summary = ReadSummary()
    for outcome in outcomes:
        if outcome.error:
            raise InputError(outcome.error)
        summary.num_in[outcome.split] += outcome.num_in
        summary.counts.setdefault(outcome.split, SplitCounts()).add(outcome.counts)
        summary.boxes_by_class.update(outcome.boxes_by_class)
        summary.num_boxes_in += outcome.num_boxes_in
        for name, class_id in outcome.class_ids.items():
            known_id, _ = summary.declared.setdefault(name, (class_id, outcome.source))
            if known_id != class_id:
                raise InputError(
                    f"{job.root}/{outcome.source}: category {name!r} has id {class_id}, elsewhere {known_id}; "
                    f"make them equal, or name the classes with {name_setting('classes')}."
                )
        for name, place in outcome.first_use.items():
            summary.first_use.setdefault(name, place)
        summary.first_unknown = summary.first_unknown or outcome.first_unknown
        summary.first_reject = summary.first_reject or outcome.first_reject
        summary.boxes_by_split[outcome.split] += sum(outcome.boxes_by_class.values())
        summary.fractions_by_split[outcome.split] += outcome.num_fractions
        if len(summary.first_use) > TOO_MANY_CLASSES or len(summary.declared) > TOO_MANY_CLASSES:
            raise InputError(
                f"{job.root}/{outcome.source}: more than {TOO_MANY_CLASSES} different class names; correct the "
                "labels or the format of the data."
            )
    return summary


def choose_label_map(summary: ReadSummary, job: IngestJob) -> LabelMap | None:
    """Return the label map: the given classes, else the data's own ids, its declared order, or the sorted names.

    None if there is no class.

    Raises:
        InputError: if the ids are invalid.
    """
    if job.params.classes:
        return LabelMap.from_names(job.params.classes)
    used = summary.boxes_by_class
    ids = {name: class_id for name, (class_id, _) in summary.declared.items() if class_id is not None}
    # Exporters (Roboflow) write a category 0 named after the project, which no object has; 0 is the background here.
    ids = {name: class_id for name, class_id in ids.items() if class_id != 0 or used[name]}
    if ids:
        return _from_ids(
            ids, next(source for class_id, source in summary.declared.values() if class_id is not None), job
        )
    if summary.declared:
        return LabelMap.from_names(summary.declared)
    if used:
        return LabelMap.from_names(sorted(used))
    return None


def check_has_objects(summary: ReadSummary, job: IngestJob) -> None:
    """Raise if no object was read, with the first reason; the report says it if all records were rejected."""
    if summary.all_are_refused or any(summary.boxes_by_class.values()):
        return
    reason = ""
    if summary.first_reject:
        file, detail = summary.first_reject
        reason = f"; {summary.num_boxes_in} boxes were rejected; the first reason is {file}: {detail}"
    left_out = sum((part.left_out for part in summary.counts.values()), Counter[str]())
    if message := explain_no_objects(job, sum(summary.num_in.values()), left_out, reason):
        raise InputError(message)


def explain_no_objects(job: IngestJob, num_images: int, left_out: Mapping[str, int], reason: str = "") -> str:
    """Return the message for labelled data without an object; "" if that is allowed."""
    if job.data_format == formats.UNLABELLED or job.params.allow_no_objects:
        return ""
    label = formats.find_label_like(job.folder(job.subfolders[-1]))
    if left_out and not reason:
        reason = "; left out were: " + ", ".join(f"{kind} {count}" for kind, count in sorted(left_out.items()))
        reason += ", whose classes are not in the label map" if LEFT_OUT_CLASS in left_out else ""
    looked_for = f"; the labels of {job.data_format} are {formats.FORMATS[job.data_format].DESCRIPTION}; seen: "
    reason = reason or looked_for + (label or "no file that may be labels")
    hint = f"If the images show no objects, set {name_setting('allow_no_objects')}."
    return f"{job.root}: {num_images} images, but no box{reason}. {hint}"


def check_units(summary: ReadSummary, job: IngestJob) -> None:
    """Raise if all boxes of a split, which are in pixels, are inside of one pixel."""
    for split, number in summary.fractions_by_split.items():
        if number and number == summary.boxes_by_split[split]:
            raise InputError(
                f"{job.root}/{job.sources[split]}: all {number} boxes are inside of 1x1 pixel. They probably are "
                f"fractions of the image; to read them so, set {name_setting('fractional_boxes')}."
            )


def _from_ids(ids: dict[str, int], source: str, job: IngestJob) -> LabelMap:
    repeated_ids = [class_id for class_id, count in Counter(ids.values()).items() if count > 1]
    if repeated_ids:
        names = sorted(name for name, class_id in ids.items() if class_id == repeated_ids[0])
        raise InputError(
            f"{job.root}/{source}: categories: id {repeated_ids[0]} is used by {', '.join(map(repr, names[:9]))}; "
            f"correct it, or name the classes with {name_setting('classes')}."
        )
    try:
        return LabelMap(tuple((class_id, name) for name, class_id in ids.items()))
    except InputError as error:
        hint = f"Or name the classes with {name_setting('classes')}."
        raise InputError(f"{job.root}/{source}: categories: {error} {hint}") from None


def find_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that differ only in case, spaces or the Unicode form of their characters."""
    groups: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        groups.setdefault("".join(plain.split()), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def check_classes(summary: ReadSummary, job: IngestJob, label_map: LabelMap | None) -> None:
    """Raise for the first object of a class outside the label map, unless such boxes are to be rejected or left out."""
    if job.params.unknown_class != "fail":
        return
    known = set(label_map.names) if label_map else set()
    if summary.first_unknown is not None:
        file, detail = summary.first_unknown
        ids = sorted(class_id for class_id, _ in summary.declared.values() if class_id is not None)
        allowed: list[Any] = ids or list(summary.declared)
        known_classes = (
            f", allowed: {allowed[:50]}; correct it, or add it to the classes of the data set" if allowed else ""
        )
        raise InputError(f"{job.root}/{file}: {detail}{known_classes}; {_OTHERWISE}")
    for name, (file, record_key) in summary.first_use.items():
        if name not in known:
            raise InputError(
                f"{job.root}/{file}: record {record_key!r} has class {name!r}, allowed: {sorted(known)[:50]}; "
                f"correct it, or add it to {name_setting('classes')}; {_OTHERWISE}"
            )
