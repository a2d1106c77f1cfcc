"""Write files of labelled data sets, and read them with the reader of their format."""

import io
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.hash_images import hash_images, list_blocks
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.plan import plan
from detloom.components.example_gen.read_annotations import read_annotations
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import (
    FormatEvidence,
    SourceClass,
    SourceItem,
    SourceRecord,
)
from detloom.components.example_gen.write_shard import write_shard
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.rejects import REJECTS_FILE, Reject, parse_reject
from detloom.schemas.run_file.data import IngestSettings


def write_files(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files by path; return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def format_voc(filename: str, objects: Iterable[tuple[Any, ...]], image_hw: tuple[int, int] | None = None) -> str:
    """Return an annotation; an object is its class, xmin, ymin, xmax, ymax in pixels."""
    items = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><truncated>1</truncated><bndbox><xmin>{xmin}</xmin>"
        f"<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
        for name, xmin, ymin, xmax, ymax in objects
    )
    size = f"<size><width>{image_hw[1]}</width><height>{image_hw[0]}</height></size>" if image_hw else ""
    return f"<annotation><filename>{filename}</filename>{size}{items}</annotation>"


def read_items(data_format: str, folder: Path, source: str = "", split: str = "train", **settings: Any) -> list[Any]:
    """Return all records, rejects and classes of a source."""
    data, reader_settings = DataFolder(str(folder)), IngestSettings(**settings)
    chunks = list(formats.list_chunks(data_format, data, split, source, reader_settings))
    return [item for chunk in chunks for item in formats.read_chunk(data_format, data, chunk, reader_settings)]


def read_rejects(folder: Path) -> list[Reject]:
    """Return the quarantine of an ingestion."""
    return [parse_reject(line) for line in (folder / REJECTS_FILE).read_bytes().splitlines()]


def records(items: list[SourceItem]) -> list[SourceRecord]:
    return [item for item in items if isinstance(item, SourceRecord)]


def rejects(items: list[SourceItem]) -> list[Reject]:
    return [item for item in items if isinstance(item, Reject)]


def classes(items: list[SourceItem]) -> list[SourceClass]:
    return [item for item in items if isinstance(item, SourceClass)]


def detect(data_format: str, folder: Path) -> FormatEvidence | None:
    return formats.FORMATS[data_format].detect(DataFolder(str(folder)))


def encode_image(seed: int = 0, mode: str = "RGB", image_format: str = "JPEG", **save: Any) -> bytes:
    """Return 60x40 px of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format=image_format, **save)
    return buffer.getvalue()


def png_of_size(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def encode_grey_png(image_hw: tuple[int, int] = (40, 60), grey: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full(image_hw, grey, np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def make_record(
    source_id="1", filename="images/a.png", boxes=((0.25, 0.5, 0.75, 1.0),), class_ids=(3,), **more
) -> bytes:
    """Create a 40x60 example; `more` are features by the name of their constant, lists of int, float or bytes."""
    import tensorflow as tf

    example = tf.train.Example()
    features = {
        "IMAGE_ENCODED": [more.pop("image", encode_grey_png())],
        "IMAGE_FORMAT": [more.pop("image_format", b"png")],
        "IMAGE_HEIGHT": [40],
        "IMAGE_WIDTH": [60],
        "IMAGE_FILENAME": [filename.encode()],
        "IMAGE_SOURCE_ID": [source_id.encode()],
        "CLASS_ID": list(class_ids),
        **{f"BOX_{side}": [float(box[i]) for box in boxes] for i, side in enumerate(("YMIN", "XMIN", "YMAX", "XMAX"))},
        **more,
    }
    for name, values in features.items():
        if not values:
            continue
        feature = example.features.feature[getattr(keys, name)]
        kind = "bytes_list" if isinstance(values[0], bytes) else "int64_list"
        kind = "float_list" if isinstance(values[0], float) else kind
        getattr(feature, kind).value.extend(values)
    return example.SerializeToString()


def run_steps(job: IngestJob, num_chunks: int, make_pipeline: Callable[[], Any]) -> None:
    """Run the steps of an ingestion in sequence, in place of the Beam job, which takes seconds to start."""
    for index in range(num_chunks):
        read_annotations(index, job)
    if job.joins_duplicates:
        for block in (block for index in range(num_chunks) for block in list_blocks(index, job)):
            hash_images(block, job)
    for shard in plan(num_chunks, job):
        write_shard(shard, job)
