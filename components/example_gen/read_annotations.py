"""List the chunks of the annotations, and read each of them (first step): write one line per record."""

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.ingest_job import (
    CHUNKS_PER_FILE,
    IngestJob,
    PlanRow,
    SplitCounts,
    decode_chunk,
    encode_chunk,
    encode_row,
)
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import (
    LEFT_OUT_CLASS,
    TOO_MANY_CLASSES,
    Chunk,
    SourceClass,
    SourceItem,
    SourceRecord,
)
from detloom.schemas.contracts.rejects import Reason, Reject, format_reject
from detloom.schemas.errors import InputError

_RECORDS_PER_BLOCK = 256


@dataclass
class ReadOutcome:
    """The outcome of reading one chunk.

    Attributes:
        num_in: records, including rejected ones.
        counts: what the reader rejected, by the data set's own split.
        class_ids: declared classes and their ids (None if the format has none), in the order of declaration.
        boxes_by_class: of all objects of the records.
        first_use: by class name, the annotation file and record key of its first object.
        first_unknown: file and detail of the first box that the reader rejected for its class.
        first_reject: file and detail of what the reader rejected first.
        num_fractions: boxes in pixels that are inside of one pixel.
        blocks: byte offset and number of records of each part of the file of records.
        error: set if a file that a whole split depends on is damaged; the other fields are ignored then.
    """

    source: str
    split: str
    num_in: int = 0
    counts: SplitCounts = field(default_factory=SplitCounts)
    class_ids: dict[str, int | None] = field(default_factory=dict)
    boxes_by_class: Counter[str] = field(default_factory=Counter)
    first_use: dict[str, tuple[str, str]] = field(default_factory=dict)
    first_unknown: tuple[str, str] | None = None
    first_reject: tuple[str, str] | None = None
    num_fractions: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    error: str = ""

    @property
    def num_boxes_in(self) -> int:
        """Count all objects, including rejected ones and those left out for their class."""
        counts = self.counts
        refused = counts.num_boxes_rejected + counts.num_boxes_quarantined + counts.num_boxes_left_out
        return sum(self.boxes_by_class.values()) + refused


def list_chunks(job: IngestJob) -> tuple[int, bool]:
    """Write the list of chunks; the names of one chunk at a time are in memory.

    Returns:
        the number of chunks, and whether a split of the job has several sources in the data set, so that keys may
        repeat.

    Raises:
        InputError: for a source that does not exist.
    """
    has_many_sources = False

    def list_lines() -> Iterator[bytes]:
        nonlocal has_many_sources
        for subfolder, (split, source) in itertools.product(job.subfolders, job.sources.items()):
            folder = job.folder(subfolder)
            first: str | None = None
            for chunk in formats.list_chunks(job.data_format, folder, split, source, job.params):
                first = chunk.source if first is None else first
                has_many_sources |= chunk.source != first
                yield encode_chunk(chunk, subfolder) + b"\n"

    lines, num_chunks = list_lines(), 0
    while part := list(itertools.islice(lines, CHUNKS_PER_FILE)):
        with job.staging.open_to_write(job.chunks_file(num_chunks // CHUNKS_PER_FILE)) as file:
            file.writelines(part)
        num_chunks += len(part)
    return num_chunks, has_many_sources


def read_annotations(index: int, job: IngestJob) -> int:
    """Read chunk `index`, write its records, rejects and outcome to the staging folder, and return the index."""
    read_first_annotations(index, *read_chunk(index, job), job, sys.maxsize)
    return index


def read_chunk(index: int, job: IngestJob) -> tuple[str, Chunk]:
    """Return the subfolder and chunk `index` from the list of chunks."""
    with job.staging.open(job.chunks_file(index // CHUNKS_PER_FILE)) as lines:
        return decode_chunk(next(itertools.islice(lines, index % CHUNKS_PER_FILE, None)))


def read_first_annotations(index: int, subfolder: str, chunk: Chunk, job: IngestJob, max_records: int) -> None:
    """Do as `read_annotations`, but stop after this many records."""
    outcome = ReadOutcome(f"{subfolder}/{chunk.source}" if subfolder else chunk.source, chunk.split)
    try:
        with (
            job.staging.open_to_write(job.records_file(index)) as records,
            job.staging.open_to_write(job.rejects_file(f"a-{index:06d}")) as rejects,
        ):
            folder = job.folder(subfolder)
            writer = _ItemWriter(job, subfolder, folder, chunk.source, outcome, records, rejects)
            for item in formats.read_chunk(job.data_format, folder, chunk, job.params):
                writer.write(item)
                if outcome.num_in == max_records:
                    break
    except InputError as error:
        outcome.error = str(error)
    job.staging.write_json(job.read_outcome_file(index), {**vars(outcome), "counts": vars(outcome.counts)})


def read_outcome(job: IngestJob, index: int) -> ReadOutcome:
    values = job.staging.read_json(job.read_outcome_file(index))
    return ReadOutcome(**{**values, "counts": SplitCounts(**values["counts"])})


class _ItemWriter:
    """A writer that counts the items of one chunk and stores them."""

    def __init__(
        self,
        job: IngestJob,
        subfolder: str,
        folder: DataFolder,
        source: str,
        outcome: ReadOutcome,
        records: IO[bytes],
        rejects: IO[bytes],
    ) -> None:
        self._folder = folder
        self._prefix = f"{subfolder}/" if subfolder else ""
        # Depends on the settings, not on the number of spans so far, so that a key does not change when the next span
        # arrives.
        has_many_spans = job.params.num_spans > 1 or len(job.subfolders) > 1
        self._key_prefix = (self._prefix if has_many_spans else "") + (f"{source}:" if job.has_many_sources else "")
        self._leaves_out = job.params.unknown_class == "leave_out"
        self._are_fractions = job.params.fractional_boxes
        self._group = re.compile(job.params.group_by) if job.params.group_by else None
        self._outcome, self._records, self._rejects = outcome, records, rejects
        self._num_bytes = 0  # in the file of records; not every file system tells

    def write(self, item: SourceItem) -> None:
        if isinstance(item, SourceClass):
            self._outcome.class_ids.setdefault(item.name, item.class_id)
            return
        num_bytes = self._image_size(item) if isinstance(item, SourceRecord) else 0
        group = self._group_of(item) if isinstance(item, SourceRecord) else ""
        if self._prefix or self._key_prefix:
            item = _prefixed(item, self._prefix, self._key_prefix)
        if isinstance(item, Reject):
            self._outcome.num_in += item.scope == "record"
            self._reject(item)
        else:
            self._outcome.num_in += 1
            self._write_record(item, group, num_bytes)

    def _group_of(self, record: SourceRecord) -> str | None:
        """Return the text that decides the split: the group, or the data set's own key; None without a match."""
        if self._group is None:
            return record.record_key
        match = self._group.search(record.record_key if record.example_at else record.image_path)
        return None if match is None else match.group(1)

    def _reject(self, reject: Reject) -> None:
        if reject.reason is Reason.UNKNOWN_CLASS and self._leaves_out:
            self._outcome.counts.left_out[LEFT_OUT_CLASS] += reject.num_boxes
            return
        self._outcome.counts.add_reject(reject)
        self._rejects.write(format_reject(reject) + b"\n")
        self._outcome.first_reject = self._outcome.first_reject or (reject.file, reject.detail)
        if reject.reason is Reason.UNKNOWN_CLASS and self._outcome.first_unknown is None:
            self._outcome.first_unknown = (reject.file, reject.detail)

    def _write_record(self, record: SourceRecord, group: str | None, num_bytes: int) -> None:
        if group is None:
            assert self._group is not None
            searched = record.record_key if record.example_at else record.image_path
            detail = f"group_by {self._group.pattern!r} does not match {searched!r:.120}"
            self._reject(record.reject_record(Reason.NO_GROUP, detail))
            return
        try:
            record.image_path.encode()
            record.record_key.encode()
        except UnicodeEncodeError:
            self._reject(record.reject_record(Reason.UNREADABLE_FILE, "the file name is not UTF-8"))
            return
        if self._are_fractions:
            record = record._replace(is_relative=True)
        self._outcome.num_fractions += record.num_fractions
        self._outcome.boxes_by_class.update([item.class_name for item in record.objects])
        names = {item.class_name for item in record.objects}
        for name in sorted(name for name in names if name not in self._outcome.first_use):
            self._outcome.first_use[name] = (record.annotation_path, record.record_key)
        if len(self._outcome.first_use) > TOO_MANY_CLASSES:
            raise InputError(
                f"{self._folder.root}/{record.annotation_path}: more than {TOO_MANY_CLASSES} different class names; "
                "correct the labels or the format of the data."
            )
        header = PlanRow(
            split=record.split,
            source=self._outcome.source,
            record_key=record.record_key,
            image_id=f"{record.image_path}@{record.example_at[0]}" if record.example_at else record.image_path,
            num_bytes=num_bytes,
            group=group,
            class_names=sorted(names),
            label_path=record.annotation_path,
            is_found_by_name=record.is_found_by_name,
        )
        blocks = self._outcome.blocks
        if not blocks or blocks[-1][1] == _RECORDS_PER_BLOCK:
            blocks.append([self._num_bytes, 0])
        blocks[-1][1] += 1
        line = encode_row(header, record) + b"\n"
        self._records.write(line)
        self._num_bytes += len(line)

    def _image_size(self, record: SourceRecord) -> int:
        """Return the bytes of a record's image; 0 if it is missing or invalid, which is reported when it is read."""
        if record.example_at is not None:
            return record.example_at[1]
        try:
            status = self._folder.status(record.image_path)
        except SourceError:
            return 0
        return status.size if status else 0


def _prefixed(item: SourceRecord | Reject, prefix: str, key_prefix: str) -> SourceRecord | Reject:
    """Return the item with files relative to the folder of the spans, and with a key that is unique over spans."""
    if isinstance(item, Reject):
        return replace(item, file=prefix + item.file, record_key=key_prefix + item.record_key)
    return item._replace(
        record_key=key_prefix + item.record_key,
        image_path=prefix + item.image_path,
        annotation_path=prefix + item.annotation_path,
    )
