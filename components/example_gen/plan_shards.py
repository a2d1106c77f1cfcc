"""What is read, and how it is cut into shards: decided once, before any image is opened."""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.coco import read_coco_split
from detloom.components.example_gen.sources.source_record import SourceRecord, SourceSplit
from detloom.components.example_gen.sources.voc import read_voc_split
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.rejects import Reason, Reject

# A small split still becomes several files, so that two workers have something to share and the trainer can interleave;
# eight is enough for that, and fewer than 32 records a file would be mostly overhead.
FEW_SHARDS = 8
MIN_RECORDS_PER_SHARD = 32


@dataclass(frozen=True)
class Shard:
    """The records of one output file, in their order in it; one Beam element."""

    split: str
    index: int
    num_shards: int
    records: tuple[SourceRecord, ...]

    @property
    def file_name(self) -> str:
        return f"data_tfrecord-{self.index:05d}-of-{self.num_shards:05d}"


def read_data_set(folder: Path, params: ExampleGenParams) -> tuple[list[SourceSplit], LabelMap]:
    """Read every split's annotations, quarantine duplicates, and settle the classes.

    Raises:
        InputError: for a file that a whole split depends on, or a class that is not allowed.
    """
    splits = []
    for split, source in params.splits.items():
        match params.data_format:
            case "voc":
                splits.append(read_voc_split(folder, split, source, params.images_dir))
            case "coco":
                splits.append(read_coco_split(folder, split, source, params.images_dir))
            case other:
                raise AssertionError(other)
    for source_split in splits:
        if source_split.num_records_in == 0:
            raise InputError(f"{folder / source_split.source}: split {source_split.split!r} lists no image.")
    _quarantine_duplicates(splits)
    label_map = _build_label_map(folder, params, splits)
    if params.unknown_class == "fail":
        _check_classes(folder, splits, label_map)
    return splits, label_map


def _quarantine_duplicates(splits: list[SourceSplit]) -> None:
    """Refuse a record whose key stands twice in its split, or whose image belongs to a record before it.

    Two output splits of the same source share all their images on purpose: those are no duplicates of one another. An
    image belongs to the first record that is kept, so that a refused one costs no other record its image.
    """
    first_by_image: dict[str, tuple[SourceSplit, str]] = {}
    for source_split in splits:
        seen_keys: set[str] = set()
        kept = []
        for record in source_split.records:
            first_split, first_key = first_by_image.get(record.image_path, (source_split, record.record_key))
            is_same = first_split is source_split and first_key == record.record_key
            reject: Reject | None = None
            if record.record_key in seen_keys:
                detail = f"the id {record.record_key!r} stands twice in {source_split.source}"
                reject = record.reject_record(Reason.DUPLICATE_ID, detail)
            elif not is_same and (first_split is source_split or first_split.source != source_split.source):
                detail = f"the image is that of record {first_key!r} of split {first_split.split!r} already"
                reject = record.reject_record(Reason.DUPLICATE_IMAGE, detail)
            seen_keys.add(record.record_key)
            if reject is None:
                first_by_image.setdefault(record.image_path, (source_split, record.record_key))
                kept.append(record)
            else:
                source_split.rejects.append(reject)
                source_split.num_boxes_quarantined += len(record.objects)
        source_split.records[:] = kept


def _build_label_map(folder: Path, params: ExampleGenParams, splits: list[SourceSplit]) -> LabelMap:
    if params.class_names:
        return LabelMap.from_names(params.class_names)
    if all(source_split.class_ids is None for source_split in splits):
        names = sorted({name for source_split in splits for name in source_split.class_names()})
        if not names:
            sources = ", ".join(source_split.source for source_split in splits)
            raise InputError(f"{folder}: no labelled object in {sources}; name the classes in class_names.")
        return LabelMap.from_names(names)
    ids: dict[str, int] = {}
    for source_split in splits:
        for name, class_id in (source_split.class_ids or {}).items():
            if ids.setdefault(name, class_id) != class_id:
                raise InputError(
                    f"{folder / source_split.source}: category {name!r} has id {class_id}, in another split "
                    f"{ids[name]}; make them equal or name the classes in class_names."
                )
    try:
        return LabelMap(tuple((class_id, name) for name, class_id in ids.items()))
    except InputError as error:
        raise InputError(
            f"{folder / splits[0].source}: categories: {error} Or name the classes in class_names."
        ) from None


def _check_classes(folder: Path, splits: list[SourceSplit], label_map: LabelMap) -> None:
    known = set(label_map.names)
    for source_split in splits:
        for reject in source_split.rejects:
            if reject.reason is Reason.UNKNOWN_CLASS:
                allowed = sorted((source_split.class_ids or {}).values())
                raise InputError(
                    f"{folder / reject.file}: {reject.detail}, allowed: {allowed}; correct it, add it to the "
                    "categories, or set unknown_class to 'reject' to leave such boxes out."
                )
        for record in source_split.records:
            for item in record.objects:
                if item.class_name not in known:
                    raise InputError(
                        f"{folder / record.annotation_path}: record {record.record_key!r} has class "
                        f"{item.class_name!r}, allowed: {sorted(known)}; correct it, add it to class_names, or set "
                        "unknown_class to 'reject' to leave such boxes out."
                    )


def class_ids_by_name(label_map: LabelMap) -> Mapping[str, int]:
    return {name: class_id for class_id, name in label_map.names_by_id}


def plan_shards(folder: Path, source_split: SourceSplit, max_bytes: int) -> list[Shard]:
    """Cut one split into shards of about equal bytes, each at most `max_bytes` and one image more.

    The order is that of a hash of the record key: neighbours of the source (frames of one camera, one class after the
    other) are spread over the shards, and the outcome depends on nothing but the records and the image sizes.
    """
    records = sorted(source_split.records, key=lambda record: (_hash(record.record_key), record.record_key))
    sizes = [_file_size(folder / record.image_path) for record in records]
    total = max(1, sum(sizes))
    few = min(FEW_SHARDS, math.ceil(len(records) / MIN_RECORDS_PER_SHARD))
    num_planned = max(1, few, math.ceil(total / max_bytes))
    groups: dict[int, list[SourceRecord]] = {}
    before = 0
    for record, size in zip(records, sizes, strict=True):
        groups.setdefault(min(num_planned - 1, before * num_planned // total), []).append(record)
        before += size
    return [Shard(source_split.split, index, len(groups), tuple(group)) for index, group in enumerate(groups.values())]


def _hash(record_key: str) -> bytes:
    return hashlib.sha256(record_key.encode()).digest()


def _file_size(path: Path) -> int:
    """Bytes of the image; 0 where it is missing, which is found again and reported when it is read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
