"""Hash the images of a data set before it is split, so that images that look the same stay in one split.

The hashes are those of the data set's files. An image that cannot be read has none, and is reported when it is written.
"""

import hashlib
import struct
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from detloom.components.example_gen.build_example import read_image
from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.ingest_job import HASHES_DIR, IngestJob, decode_record, decode_row
from detloom.components.example_gen.read_annotations import read_outcome
from detloom.components.similarity.image_hash import hash_image
from detloom.components.similarity.near_duplicates import group_near_duplicates
from detloom.components.storage.many_files import map_files
from detloom.schemas.contracts.arrays import BoolArray, Int64Array, Uint64Array

_ROW = struct.Struct("<QQBB")  # 64 bits of the SHA-256, perceptual hash, whether there is either


class Block(NamedTuple):
    """Consecutive records of one chunk, whose images one worker hashes; `offset` is that of the first in its file."""

    chunk: int
    number: int
    offset: int
    num_records: int


class ImageHashes(NamedTuple):
    """The hashes of N images.

    Attributes:
        contents_N: first 64 bits of the SHA-256; one false match is expected among six billion images.
        looks_N: perceptual hashes.
        has_content_N, has_look_N: False for an image that cannot be read, or is not decoded.
    """

    contents_N: Uint64Array
    looks_N: Uint64Array
    has_content_N: BoolArray
    has_look_N: BoolArray


def list_blocks(chunk: int, job: IngestJob) -> list[Block]:
    """Return the blocks of a chunk that was read; none if it is damaged, because the ingestion ends then."""
    outcome = read_outcome(job, chunk)
    blocks = [] if outcome.error else outcome.blocks
    return [Block(chunk, number, offset, count) for number, (offset, count) in enumerate(blocks)]


def hash_images(block: Block, job: IngestJob) -> Block:
    """Write the hashes of a block's images to the staging folder, and return the block."""
    folder = DataFolder(job.root)
    with job.staging.open(job.records_file(block.chunk)) as file:
        file.seek(block.offset)
        records = [decode_record(decode_row(file.readline())[1]) for _ in range(block.num_records)]
    folder.expect((each.image_path for each in records if each.example_at is None), job.params.max_image_bytes)
    with job.staging.open_to_write(job.hashes_file(block.chunk, block.number)) as out:
        for record in records:
            try:
                encoded = read_image(record, folder, job.params.max_image_bytes).encoded
            except SourceError:
                out.write(_ROW.pack(0, 0, False, False))
                continue
            content = int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big")
            look = None if job.params.separate_near_duplicates else hash_image(encoded, job.params.max_pixels)
            out.write(_ROW.pack(content, look or 0, True, look is not None))
    return block


def read_hashes(job: IngestJob) -> ImageHashes:
    """Return the hashes of all images, in the order of chunks and records; 18 bytes for each image."""
    paths = (f"{HASHES_DIR}/{name}" for name in job.staging.list_names(HASHES_DIR))
    blocks = map_files(job.staging, lambda path: job.staging.read(path) or b"", paths)
    rows = np.frombuffer(b"".join(blocks), np.dtype("<u8, <u8, u1, u1"))
    return ImageHashes(rows["f0"], rows["f1"], rows["f2"].astype(bool), rows["f3"].astype(bool))


def group_duplicates(hashes: ImageHashes, max_distance: int) -> Int64Array:
    """Return a number for each image that is equal for identical images and near-duplicates, also through others.

    Args:
        max_distance: largest number of different bits between the hashes of two near-duplicates.
    """
    rows_C = np.flatnonzero(hashes.has_content_N)
    _, firsts, places_C = np.unique(hashes.contents_N[rows_C], return_index=True, return_inverse=True)
    rows_L = np.flatnonzero(hashes.has_look_N)
    near_L = group_near_duplicates(hashes.looks_N[rows_L], max_distance=max_distance)
    ends = np.concatenate([rows_C, rows_L]), np.concatenate([rows_C[firsts[places_C]], rows_L[near_L]])
    edges = coo_matrix((np.ones(len(ends[0]), np.int8), ends), shape=(len(hashes.contents_N),) * 2)
    return connected_components(edges, directed=False)[1].astype(np.int64)
