"""Plan the output in one worker (second step): find duplicates, and settle the label map, splits and shards.

No image is opened. The records pass through a SQLite file on the worker's disk, so memory does not grow with their
number.
"""

import functools
import hashlib
import itertools
import math
import operator
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detloom.components.example_gen.classes import (
    ReadSummary,
    check_classes,
    check_has_objects,
    check_units,
    choose_label_map,
    merge_outcomes,
)
from detloom.components.example_gen.hash_images import group_duplicates, read_hashes
from detloom.components.example_gen.ingest_job import (
    RECORDS_DIR,
    IngestJob,
    PlanRow,
    SplitCounts,
    decode_record,
    decode_row,
)
from detloom.components.example_gen.read_annotations import read_outcome
from detloom.components.example_gen.unlisted import Unlisted, find_unlisted
from detloom.components.examples_folder import SHARD_PREFIX
from detloom.components.storage.many_files import map_files, read_lines_of_files
from detloom.schemas.contracts.arrays import Int64Array
from detloom.schemas.contracts.rejects import Reason, Reject, format_reject
from detloom.schemas.errors import InputError

# Even a small split gets several files, so that two workers can share it and the trainer can interleave; eight are
# enough, and fewer than 32 records per file would be mostly overhead.
FEW_SHARDS = 8
MIN_RECORDS_PER_SHARD = 32

UNREAD_BOX = "box_of_unread_image"  # kind of what is left out
_SCHEMA = """
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, split TEXT, source TEXT, record_key TEXT, image_id TEXT, num_bytes INTEGER,
    record_group TEXT, stratum INTEGER, out_split TEXT, place BLOB, by_name INTEGER, label_path TEXT, record BLOB
);
CREATE TABLE refused (seq INTEGER PRIMARY KEY);
"""
_KEPT = "NOT EXISTS (SELECT 1 FROM refused WHERE refused.seq = records.seq)"


@dataclass(frozen=True)
class Shard:
    """One output file to write; one Beam element."""

    split: str
    index: int
    num_shards: int
    gzip: bool = False

    @property
    def file_name(self) -> str:
        return f"{SHARD_PREFIX}{self.index:05d}-of-{self.num_shards:05d}{'.gz' if self.gzip else ''}"


@dataclass
class Plan:
    """The result of planning; it is stored as JSON.

    Attributes:
        error: message for the user; all other fields are empty then.
        num_in, num_boxes_in: number read, including rejected ones.
        counts: what was rejected so far, by split; the split is "" if none was assigned.
        num_planned: number of records to write, for the progress display.
        num_shards: by split.
        unlisted: images without a label.
    """

    error: str = ""
    num_in: int = 0
    num_boxes_in: int = 0
    label_map: list[tuple[int, str]] = field(default_factory=list)
    counts: dict[str, SplitCounts] = field(default_factory=dict)
    num_planned: int = 0
    num_shards: dict[str, int] = field(default_factory=dict)
    unlisted: Unlisted = field(default_factory=Unlisted)


def plan(num_chunks: int, job: IngestJob) -> list[Shard]:
    """Read the readers' results, decide, and write a file of records for each shard.

    User errors are returned in the plan's `error`, because Beam would wrap an exception; no shards are returned then.
    """
    result, shards = Plan(), []
    try:
        outcomes = map_files(job.staging, functools.partial(read_outcome, job), range(num_chunks))
        summary = merge_outcomes(outcomes, job)
        result.num_in = sum(summary.num_in.values())
        result.counts = summary.counts
        _check_sources(summary, job)
        label_map = choose_label_map(summary, job)
        check_classes(summary, job, label_map)
        check_units(summary, job)
        with (
            tempfile.TemporaryDirectory(prefix="detloom-plan-") as folder,
            closing(_open_database(Path(folder) / "records.sqlite")) as database,
            job.staging.open_to_write(job.rejects_file("b-plan")) as rejects,
        ):
            _load_records(database, job, _class_ranks(summary.boxes_by_class))

            def refuse(reject: Reject) -> None:
                result.counts.setdefault(reject.split, SplitCounts()).add_reject(reject)
                rejects.write(format_reject(reject) + b"\n")

            for reject in find_unlisted(database, job, result.unlisted):
                summary.first_reject = summary.first_reject or (reject.file, reject.detail)
                summary.num_boxes_in += reject.num_boxes
                refuse(reject)
            result.num_boxes_in = summary.num_boxes_in
            if result.unlisted.num_unread_boxes:
                left_out = result.counts.setdefault("", SplitCounts()).left_out
                left_out[UNREAD_BOX] += result.unlisted.num_unread_boxes
            check_has_objects(summary, job)
            for reject in _refuse_duplicates(database):
                refuse(reject)
            if job.joins_duplicates:
                groups = group_duplicates(read_hashes(job), job.params.max_distance)
                _join_duplicates(database, groups, job)
            if job.params.stratify:
                _stratify(database, job)
            for split in job.output_splits:
                num_shards = _plan_split(database, split, job, result)
                result.num_shards[split] = num_shards
                shards += [Shard(split, index, num_shards, job.params.gzip) for index in range(num_shards)]
        result.label_map = list(label_map.names_by_id) if label_map else []
    except InputError as error:
        result, shards = Plan(error=str(error)), []
    values = {**vars(result), "counts": {split: vars(counts) for split, counts in result.counts.items()}}
    values["unlisted"] = vars(result.unlisted)
    job.staging.write_json(job.plan_file, values)
    return shards


def read_plan(job: IngestJob) -> Plan:
    values = job.staging.read_json(job.plan_file)
    counts = {split: SplitCounts(**part) for split, part in values["counts"].items()}
    label_map = [(class_id, name) for class_id, name in values["label_map"]]
    unlisted = Unlisted(**values["unlisted"])
    return Plan(**{**values, "counts": counts, "label_map": label_map, "unlisted": unlisted})


def _check_sources(summary: ReadSummary, job: IngestJob) -> None:
    for split, source in job.sources.items():
        if not summary.num_in[split]:
            what = f"split {split!r} ({source}) lists" if split else f"{source or 'the folder'} has"
            raise InputError(f"{job.root}: {what} no image.")


def _class_ranks(boxes_by_class: Counter[str]) -> dict[str, int]:
    """Rank classes by number of boxes, the rarest first."""
    in_order = sorted(boxes_by_class.items(), key=lambda item: (item[1], item[0]))
    return {name: rank for rank, (name, _) in enumerate(in_order)}


def _open_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    # The file is deleted after this step, so it needs no journal and no flush. Pages and sorting use 16 MB of memory
    # each, the rest is on disk.
    database.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; PRAGMA temp_store=FILE;"
    )
    database.executescript(_SCHEMA)
    database.execute("BEGIN")
    return database


def _load_records(database: sqlite3.Connection, job: IngestJob, ranks: dict[str, int]) -> None:
    def to_row(row: PlanRow, record: bytes) -> tuple[Any, ...]:
        split = _output_split(row.split, row.group, job)
        stratum = min((ranks[name] for name in row.class_names), default=len(ranks))
        place = hashlib.sha256(row.record_key.encode("utf-8", "replace")).digest()[:12]
        return (
            row.split, row.source, row.record_key, row.image_id, row.num_bytes, row.group, stratum,
            split, row.label_path, row.is_found_by_name, place, record,
        )  # fmt: skip

    rows = (to_row(*decode_row(line)) for line in read_lines_of_files(job.staging, RECORDS_DIR))
    columns = "split, source, record_key, image_id, num_bytes, record_group, stratum, out_split, label_path, by_name"
    values = ", ".join("?" * 12)
    database.executemany(f"INSERT INTO records ({columns}, place, record) VALUES ({values})", rows)  # noqa: S608


def _output_split(split: str, group: str, job: IngestJob) -> str:
    shares = job.params.shares_of(split)
    return split_by_hash(group, shares, job.params.seed) if shares else split


def _refuse_duplicates(database: sqlite3.Connection) -> Iterator[Reject]:
    """Reject a record whose key is repeated in its split, or whose image belongs to an earlier record.

    Two output splits with the same source share all images on purpose; those are not duplicates. An image belongs to
    the first record that is kept, so a rejected record does not cost another record its image. Records that were
    written with another name come last, and if several have no other owner of their image, all are rejected.
    """
    database.execute("CREATE INDEX by_key ON records (split, record_key)")
    later = """
        SELECT seq, source, record FROM (
            SELECT seq, source, record, ROW_NUMBER() OVER (PARTITION BY split, record_key ORDER BY seq) AS turn
            FROM records
        ) WHERE turn > 1 ORDER BY seq
    """
    yield from _refuse(
        database,
        (
            (seq, record, Reason.DUPLICATE_ID, f"this id occurs twice in {source or 'the data set'}")
            for seq, source, record in database.execute(later)
        ),
    )
    database.execute("CREATE INDEX by_image ON records (image_id)")
    yield from _refuse(database, _find_shared_images(database))


def _find_shared_images(database: sqlite3.Connection) -> Iterator[tuple[int, bytes, Reason, str]]:
    shared = f"""
        SELECT seq, image_id, split, source, record_key, record, by_name AND (
            SUM(by_name) OVER (PARTITION BY image_id, split) > 1
            OR MIN(source) OVER (PARTITION BY image_id) <> MAX(source) OVER (PARTITION BY image_id)
        ) FROM records
        WHERE image_id IN (SELECT image_id FROM records GROUP BY image_id HAVING COUNT(*) > 1) AND {_KEPT}
        ORDER BY image_id, by_name, seq
    """  # noqa: S608 - the query contains no data
    current = None
    owners: list[tuple[str, str, str]] = []
    for seq, image_id, split, source, record_key, record, has_rival in database.execute(shared):
        if image_id != current:
            current, owners = image_id, []
        owner = next((o for o in owners if o[0] == split or o[1] != source), None)
        if owner is not None:
            of_split = f" of split {owner[0]!r}" if owner[0] else ""
            detail = f"the image already belongs to record {owner[2]!r}{of_split}"
            if owner[0] == split and owner[1] != source:
                detail += f"; if {owner[1]} and {source} have the same labels, remove one of them"
            yield seq, record, Reason.DUPLICATE_IMAGE, detail
        elif has_rival:
            detail = "several records name an image that is missing, and only this image has its name"
            yield seq, record, Reason.AMBIGUOUS_NAME, detail
        else:
            owners.append((split, source, record_key))


def _refuse(database: sqlite3.Connection, found: Iterable[tuple[int, bytes, Reason, str]]) -> Iterator[Reject]:
    for seq, record, reason, detail in found:
        database.execute("INSERT OR IGNORE INTO refused VALUES (?)", (seq,))
        yield decode_record(record).reject_record(reason, detail)


def _join_duplicates(database: sqlite3.Connection, numbers_N: Int64Array, job: IngestJob) -> None:
    """Put the images with an equal number into the split of the one whose record key comes first.

    The split of an image without duplicates depends on that image only. Older spans come first, so that their images
    keep their splits.
    """
    num_equal_N = np.bincount(numbers_N)[numbers_N] if len(numbers_N) else numbers_N
    shared = ((int(row) + 1, int(numbers_N[row])) for row in np.flatnonzero(num_equal_N > 1))  # seq begins at 1
    database.execute("CREATE TABLE alike (seq INTEGER PRIMARY KEY, number INTEGER)")
    database.executemany("INSERT INTO alike VALUES (?, ?)", shared)
    # SQLite takes the group from the row with the smallest key.
    database.execute("CREATE TABLE leaders (number INTEGER PRIMARY KEY, first_key TEXT, record_group TEXT)")
    database.execute(
        "INSERT INTO leaders SELECT number, MIN(record_key), record_group FROM alike JOIN records USING (seq) "  # noqa: S608
        f"WHERE {_KEPT} GROUP BY number"
    )
    output_split = functools.partial(_output_split, job=job)
    database.create_function("output_split", 2, output_split, deterministic=True)
    database.execute(
        "UPDATE records SET record_group = found.record_group, out_split = output_split(split, found.record_group) "
        "FROM (SELECT seq, record_group FROM alike JOIN leaders USING (number)) AS found "
        "WHERE found.seq = records.seq"
    )


def _stratify(database: sqlite3.Connection, job: IngestJob) -> None:
    seed = job.params.seed
    database.create_function("fraction", 1, lambda text: hash_fraction(text, seed), deterministic=True)
    database.execute("CREATE TABLE assigned (record_group TEXT PRIMARY KEY, split TEXT)")
    groups = database.execute(
        f"SELECT record_group, MIN(stratum) AS rarest, COUNT(*) FROM records WHERE {_KEPT} "  # noqa: S608
        "GROUP BY record_group ORDER BY rarest, fraction(record_group), record_group"
    )
    database.executemany("INSERT INTO assigned VALUES (?, ?)", split_stratified(groups, job.params.split_by_ratio))
    database.execute(
        "UPDATE records SET out_split = (SELECT split FROM assigned WHERE assigned.record_group = records.record_group)"
    )


def _plan_split(database: sqlite3.Connection, split: str, job: IngestJob, result: Plan) -> int:
    """Cut one split into shards with about equal bytes, each at most `shard_max_bytes` plus one image.

    Records are ordered by a hash of their key: neighbours in the source (frames of one camera, images of one class) are
    spread over the shards, and the result depends only on the records and the image sizes.
    """
    where = f"WHERE out_split = ? AND {_KEPT}"
    num_records, num_bytes = database.execute(
        f"SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM records {where}",  # noqa: S608
        (split,),
    ).fetchone()
    if not num_records:
        return 0
    result.num_planned += num_records
    total = max(1, num_bytes)
    few = min(FEW_SHARDS, math.ceil(num_records / MIN_RECORDS_PER_SHARD))
    num_parts = max(1, few, math.ceil(total / job.params.shard_max_bytes))
    rows = database.execute(
        f"SELECT num_bytes, record FROM records {where} ORDER BY place, record_key, seq",  # noqa: S608
        (split,),
    )
    num_shards = 0
    for _, part in itertools.groupby(_number_parts(rows, num_parts, total), key=operator.itemgetter(0)):
        with job.staging.open_to_write(job.shard_records_file(split, num_shards)) as file:
            for _, record in part:
                file.write(record + b"\n")
        num_shards += 1
    return num_shards


def _number_parts(rows: Iterable[tuple[int, bytes]], num_parts: int, total: int) -> Iterator[tuple[int, bytes]]:
    """Yield each record with the number of the part in which it starts; a part in which none starts is skipped."""
    before = 0
    for size, record in rows:
        yield min(num_parts - 1, before * num_parts // total), record
        before += size


def hash_fraction(text: str, seed: int) -> float:
    """Return a number in [0, 1) that depends only on the arguments."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_by_hash(group: str, shares: Mapping[str, float], seed: int) -> str:
    """Return the split of all records of a group, independent of all other records."""
    fraction = hash_fraction(group, seed)
    upper = 0.0
    for split, ratio in shares.items():
        upper += ratio
        if fraction < upper:
            return split
    return split  # the ratios sum to 1 only up to rounding


def split_stratified(groups: Iterable[tuple[str, int, int]], shares: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Assign groups one by one, each to the split with the largest deficit in its stratum and overall.

    A greedy form of iterative stratification (Sechidis, Tsoumakas, Vlahavas, "On the Stratification of Multi-Label
    Data", 2011): an image counts only for its rarest class, and rare classes come first.

    Args:
        groups: (group, stratum, number of records), ordered by stratum and within it by a hash.

    Yields:
        (group, split), in the given order.
    """
    overall = dict.fromkeys(shares, 0)
    in_stratum = dict.fromkeys(shares, 0)
    current: int | None = None
    for group, stratum, num_records in groups:
        if stratum != current:
            current, in_stratum = stratum, dict.fromkeys(shares, 0)
        all_overall = sum(overall.values()) + num_records
        all_in_stratum = sum(in_stratum.values()) + num_records
        lacking = {
            split: ratio * (all_overall + all_in_stratum) - overall[split] - in_stratum[split]
            for split, ratio in shares.items()
        }
        split = max(lacking, key=lambda name: lacking[name])  # ties go to the first
        overall[split] += num_records
        in_stratum[split] += num_records
        yield group, split
