"""Account for the files of a data set that no record names: labels without an image, and images without a label."""

import posixpath
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.ingest_job import REJECTS_DIR, IngestJob
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES, split_lines
from detloom.components.example_gen.sources.name_index import index_of
from detloom.components.example_gen.sources.source_record import MAX_ANNOTATION_BYTES, Chunk
from detloom.components.example_gen.sources.yolo import is_label
from detloom.components.storage.many_files import read_lines_of_files
from detloom.schemas.contracts.rejects import Reason, Reject, parse_reject

# Formats with a label file for each image. All but YOLO list the label files, so that one without an image is a record.
_LABEL_SUFFIXES = {"yolo": ".txt", "voc": ".xml", "kitti": ".txt", "labelme": ".json", "supervisely": ".json"}
_WITHOUT_FILES = ("tfrecord", "images")
_SHOWN = 3


@dataclass
class Unlisted:
    """Images without a label although labels are near: without a label file, or not in the annotations.

    Attributes:
        num_images: of them, `num_records` are written without boxes, as YOLO wants it; the others are not read.
        first: the first of their files.
        num_unread_boxes: boxes in label files of images that no list or folder of a split contains.
    """

    num_images: int = 0
    num_records: int = 0
    first: list[str] = field(default_factory=list)
    num_unread_boxes: int = 0


def find_unlisted(database: sqlite3.Connection, job: IngestJob, found: Unlisted) -> Iterator[Reject]:
    """Count the images without a label in `found`; yield a reject of the boxes of each label file without an image.

    Args:
        database: the records of the plan, with the columns image_id and label_path.
    """
    if job.data_format in _WITHOUT_FILES:
        return
    _note_files(database, job)
    if job.data_format == "yolo":
        rows = database.execute("SELECT image_id FROM records WHERE label_path = '' ORDER BY seq")
        for (path,) in rows:
            _add(found, path)
        found.num_records = found.num_images
    for subfolder in job.subfolders:
        yield from _search(database, job, subfolder, found)


def _note_files(database: sqlite3.Connection, job: IngestJob) -> None:
    """Fill a table with the files that records and rejects name, and with their folders, which end in a slash."""
    database.execute("CREATE TABLE seen (path TEXT PRIMARY KEY) WITHOUT ROWID")
    for column in ("image_id", "label_path"):
        for value in (column, f"rtrim({column}, replace({column}, '/', ''))"):
            select = f"SELECT {value} FROM records WHERE {column} <> ''"  # noqa: S608 - no data in it
            database.execute(f"INSERT OR IGNORE INTO seen {select}")
    files = (parse_reject(line).file for line in read_lines_of_files(job.staging, REJECTS_DIR))
    database.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((file,) for file in files if file))


def _search(database: sqlite3.Connection, job: IngestJob, subfolder: str, found: Unlisted) -> Iterator[Reject]:
    folder, prefix = job.folder(subfolder), f"{subfolder}/" if subfolder else ""
    index, suffix = index_of(folder), _LABEL_SUFFIXES.get(job.data_format, "")
    # A list leaves images out on purpose.
    has_lists = suffix and database.execute("SELECT 1 FROM records WHERE source LIKE '%.txt' LIMIT 1").fetchone()

    def is_seen(path: str) -> bool:
        return bool(database.execute("SELECT 1 FROM seen WHERE path = ?", (prefix + path,)).fetchone())

    for path in index.iter_files():
        if is_seen(path):
            continue
        is_near = is_seen(posixpath.join(posixpath.dirname(path), ""))
        if path.lower().endswith(IMAGE_SUFFIXES):
            if is_near and job.is_whole and not (has_lists and index.find_label(path, suffix)):
                _add(found, prefix + path)
        elif job.data_format == "yolo" and path.lower().endswith(suffix) and (is_near or job.is_whole):
            num_boxes = _count_lines(folder, path)
            if not all(map(is_seen, index.with_stem(path, IMAGE_SUFFIXES))):
                found.num_unread_boxes += num_boxes
            elif num_boxes:
                detail = f"no image has the name of this label file; boxes in it: {num_boxes}"
                chunk = Chunk("", prefix + path)
                yield chunk.reject_box(Reason.UNKNOWN_IMAGE, "", detail, num_boxes=num_boxes)


def _add(found: Unlisted, path: str) -> None:
    found.num_images += 1
    if len(found.first) < _SHOWN:
        found.first.append(path)


def _count_lines(folder: DataFolder, path: str) -> int:
    """Return the number of boxes of a label file; 0 for another text, such as a list of images."""
    try:
        if not is_label(folder, path):
            return 0
        return sum(bool(line.strip()) for line in split_lines(folder.read_text(path, MAX_ANNOTATION_BYTES)))
    except SourceError:
        return 1
