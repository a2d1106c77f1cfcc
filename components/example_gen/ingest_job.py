"""Describe one ingestion to all of its steps, and locate the files that the steps leave for one another."""

import json
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.source_record import (
    LEFT_OUT_CLASS,
    Chunk,
    SourceObject,
    SourceRecord,
)
from detloom.components.storage.storage import Storage, open_storage
from detloom.schemas.contracts.rejects import Reject

CHUNKS_PER_FILE = 64
RECORDS_DIR, HASHES_DIR, REJECTS_DIR = "records", "hashes", "rejects"  # in the staging folder
STAGING_DIR = ".incomplete"  # beside the split folders, in which readers treat every file as complete


@dataclass(frozen=True, kw_only=True)
class IngestJob:
    """The settings of one ingestion. Sent to every worker, so it is small and holds no data.

    Attributes:
        data_format: the format to read; never "auto".
        root: the data folder, or the folder of the spans.
        subfolders: data folders relative to `root`; ("",) unless several spans are merged.
        sources: source by split, as the chunks were listed; the split is "" if splits are assigned by ratio.
        examples: output folder of the examples, which contains the staging folder for unfinished files.
        output_splits: names of the output splits.
        has_many_sources: several files or folders are read as one source, so keys are prefixed with the source.
        is_whole: no source that the data set has of its own is left out.
        listing: key of the listings of the data folders, which the workers of one process share.
    """

    params: ExampleGenParams
    data_format: str
    root: str
    subfolders: tuple[str, ...]
    sources: Mapping[str, str]
    examples: str
    output_splits: tuple[str, ...]
    has_many_sources: bool = False
    is_whole: bool = True
    listing: str = field(default_factory=lambda: uuid.uuid4().hex)

    def folder(self, subfolder: str) -> DataFolder:
        return DataFolder(f"{self.root}/{subfolder}" if subfolder else self.root, self.listing)

    @property
    def joins_duplicates(self) -> bool:
        """Return whether images that look the same are put into one split.

        The data set's own splits and the groups of the user stay as they are.
        """
        return bool(self.params.split_by_ratio or self.params.cut_from_train) and not self.params.group_by

    @property
    def staging(self) -> Storage:
        """Return the folder of unfinished files; all paths below are relative to it."""
        return open_storage(f"{self.examples}/{STAGING_DIR}")

    def chunks_file(self, number: int) -> str:
        """Return the path of a list of `CHUNKS_PER_FILE` chunks."""
        return f"chunks/{number:06d}.jsonl"

    def records_file(self, index: int) -> str:
        return f"{RECORDS_DIR}/{index:06d}.jsonl"

    def hashes_file(self, chunk: int, block: int) -> str:
        return f"{HASHES_DIR}/{chunk:06d}-{block:06d}.bin"

    def read_outcome_file(self, index: int) -> str:
        return f"read/{index:06d}.json"

    def finished_shard(self, split: str, file_name: str) -> str:
        """Return the path of a complete shard, until all shards are complete."""
        return f"finished/{split}/{file_name}"

    @property
    def plan_file(self) -> str:
        return "plan.json"

    def shard_records_file(self, split: str, index: int) -> str:
        return f"planned/{split}-{index:06d}.jsonl"

    def shard_outcome_file(self, split: str, index: int) -> str:
        return f"written/{split}-{index:06d}.json"

    def rejects_file(self, step: str) -> str:
        """Return the path of one step's rejects; all of them, sorted by name, form the quarantine."""
        return f"{REJECTS_DIR}/{step}.jsonl"


@dataclass
class SplitCounts:
    """Counts of one split, or of a part of it; `add` merges."""

    num_written: int = 0
    num_quarantined: int = 0
    num_without_boxes: int = 0
    num_boxes_written: int = 0
    num_boxes_rejected: int = 0
    num_boxes_quarantined: int = 0
    num_bytes: int = 0
    num_shards: int = 0
    repairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    boxes_by_class: Counter[str] = field(default_factory=Counter)
    rejects_by_reason: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Convert what was read from JSON, in which counters are dictionaries."""
        for name in ("repairs", "left_out", "boxes_by_class", "rejects_by_reason"):
            setattr(self, name, Counter(getattr(self, name)))

    @property
    def num_boxes_left_out(self) -> int:
        """Number of objects that were left out; the other kinds are marks that are not objects."""
        return self.left_out[LEFT_OUT_CLASS]

    def add(self, other: "SplitCounts") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def add_reject(self, reject: Reject) -> None:
        """Count a rejected record with its boxes, or a rejected box."""
        if reject.scope == "record":
            self.rejects_by_reason[reject.reason.value] += 1
            self.num_quarantined += 1
            self.num_boxes_quarantined += reject.num_boxes
        else:  # a reader may report many similar boxes in one line
            self.rejects_by_reason[reject.reason.value] += reject.num_boxes
            self.num_boxes_rejected += reject.num_boxes


def encode_chunk(chunk: Chunk, subfolder: str) -> bytes:
    values = subfolder, chunk.split, chunk.source, chunk.names
    return _encoder.encode(values).encode("ascii")


def decode_chunk(line: bytes) -> tuple[str, Chunk]:
    """Return the subfolder and the chunk."""
    subfolder, split, source, names = json.loads(line)
    return subfolder, Chunk(split, source, tuple(names))


class PlanRow(NamedTuple):
    """The fields of a record that planning needs, so that it does not parse the rest."""

    split: str
    source: str
    record_key: str
    image_id: str
    num_bytes: int
    group: str
    class_names: list[str]
    label_path: str
    is_found_by_name: bool


def encode_row(row: PlanRow, record: SourceRecord) -> bytes:
    """Return one line: the row, a tab, the record. JSON escapes tabs and line ends."""
    return _encoder.encode(row).encode("ascii") + b"\t" + encode_record(record)


def decode_row(line: bytes) -> tuple[PlanRow, bytes]:
    """Return the row, and the record as `decode_record` expects it."""
    head, _, record = line.partition(b"\t")
    return PlanRow(*json.loads(head)), record


# Records are JSON, one per line, between reading and writing: JSON keeps NaN and other odd values of a data set.
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def encode_record(record: SourceRecord) -> bytes:
    return _encoder.encode(record).encode("ascii")


def decode_record(line: bytes) -> SourceRecord:
    """Return the record. JSON has no tuples, so the sequences in its objects are lists."""
    record = SourceRecord._make(json.loads(line))
    size = record.declared_hw
    return record._replace(
        declared_hw=(size[0], size[1]) if size else None,
        objects=tuple(map(SourceObject._make, record.objects)),
    )
