"""Read the images of one shard, check them, write one TFRecord file: the work of one Beam element."""

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf
from absl import logging

from detloom.components.example_gen.build_example import BuiltExample, build_example
from detloom.components.example_gen.plan_shards import Shard
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.rejects import Reason, Reject

STAGING_DIR = ".incomplete"  # beside the split folders: readers take every file in those for finished


@dataclass(frozen=True)
class ShardSettings:
    """What every shard of one ingestion shares.

    Attributes:
        folder: the data folder; no image is read from outside it.
        split_folders: output folder by split.
        staging: folder for files being written, on the same file system as the split folders.
    """

    folder: str
    split_folders: Mapping[str, str]
    staging: str
    class_ids: Mapping[str, int]
    max_pixels: int


@dataclass
class SplitCounts:
    """Counts of one split, or of one of its shards; `add` merges."""

    num_written: int = 0
    num_quarantined: int = 0
    num_without_boxes: int = 0
    num_boxes_written: int = 0
    num_boxes_rejected: int = 0
    num_boxes_quarantined: int = 0
    num_bytes: int = 0
    num_shards: int = 0
    repairs: Counter[str] = field(default_factory=Counter)
    boxes_by_class: Counter[str] = field(default_factory=Counter)

    def add(self, other: "SplitCounts") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class IngestOutcome:
    """What the shards report: counts by split, and every reject."""

    counts: dict[str, SplitCounts] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)

    def add(self, other: "IngestOutcome") -> None:
        for split, counts in other.counts.items():
            self.counts.setdefault(split, SplitCounts()).add(counts)
        self.rejects.extend(other.rejects)


def write_shard(shard: Shard, settings: ShardSettings) -> IngestOutcome:
    """Write one shard under a temporary name and rename it when it is complete; one image is in memory at a time."""
    started = time.monotonic()
    counts = SplitCounts(num_shards=1)
    rejects: list[Reject] = []
    temporary = Path(settings.staging) / f"{shard.split}-{shard.file_name}-{uuid.uuid4().hex}"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    allowed_roots = _real_roots(Path(settings.folder), shard.records)
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for record in shard.records:
            outcome = _read_record(record, Path(settings.folder), allowed_roots, settings)
            if isinstance(outcome, Reject):
                rejects.append(outcome)
                counts.num_quarantined += 1
                counts.num_boxes_quarantined += len(record.objects)
                continue
            writer.write(outcome.example)
            rejects.extend(outcome.rejects)
            counts.num_written += 1
            counts.num_without_boxes += not outcome.class_names
            counts.num_boxes_written += len(outcome.class_names)
            counts.num_boxes_rejected += len(outcome.rejects)
            counts.num_bytes += len(outcome.example)
            counts.repairs.update(outcome.repairs)
            counts.boxes_by_class.update(outcome.class_names)
    target = Path(settings.split_folders[shard.split]) / shard.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, target)
    seconds = time.monotonic() - started
    logging.info(
        "%s %s: %d images in %.1f s (%.0f images/s), %d quarantined",
        shard.split,
        shard.file_name,
        len(shard.records),
        seconds,
        len(shard.records) / max(seconds, 1e-6),
        counts.num_quarantined,
    )
    return IngestOutcome({shard.split: counts}, rejects)


def _real_roots(folder: Path, records: Iterable[SourceRecord]) -> tuple[str, ...]:
    """Where images may really lie: the data folder, and what its folders of images link to, if they are links."""
    tops = {record.image_path.split("/", 1)[0] for record in records if "/" in record.image_path}
    return tuple({os.path.realpath(path) + os.sep for path in (folder, *(folder / top for top in tops))})


def _read_record(
    record: SourceRecord, folder: Path, allowed_roots: tuple[str, ...], settings: ShardSettings
) -> BuiltExample | Reject:
    path = folder / record.image_path
    try:
        if not os.path.realpath(path).startswith(allowed_roots):
            return record.reject_record(Reason.PATH_OUTSIDE, "a link leads out of the data folder")
        image = path.read_bytes()
    except FileNotFoundError:
        return record.reject_record(Reason.MISSING_FILE, "the image file is missing")
    except (OSError, ValueError) as error:
        return record.reject_record(Reason.UNREADABLE_IMAGE, f"the image file cannot be read: {error}")
    return build_example(record, image, class_ids=settings.class_ids, max_pixels=settings.max_pixels)
