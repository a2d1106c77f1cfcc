"""A folder of images without labels: what a model is to look at, or a data set's images of nothing."""

import posixpath
from collections.abc import Iterator

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.name_list import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    Evidence,
    ReaderSettings,
    SourceItem,
    SourceRecord,
    cut_into_chunks,
)
from detloom.schemas.errors import InputError

_MAX_LOOKS = 10_000  # files


def detect(folder: DataFolder) -> Evidence | None:
    """Image files, here or below; the splits are folders at the top that are called so."""
    for number, file in enumerate(folder.walk()):
        if file.path.lower().endswith(IMAGE_SUFFIXES):
            return Evidence(f"images such as {file.path}", layout.find_split_folders(folder, IMAGE_SUFFIXES))
        if number >= _MAX_LOOKS:
            break
    return None


def list_chunks(folder: DataFolder, split: str, source: str, settings: ReaderSettings) -> Iterator[Chunk]:
    """The images in the folder `source` and below; "" is the folder of images, or the data folder."""
    source = source or settings.images_dir
    prefix = f"{source}/" if source else ""
    chunk = None
    files = folder.walk(source, recursive=True)
    names = (file.path.removeprefix(prefix) for file in files if file.path.lower().endswith(IMAGE_SUFFIXES))
    for chunk in cut_into_chunks(split, source, names, settings):
        yield chunk
    if chunk is None:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise InputError(f"{folder.root}/{source}: no image is there, allowed: a folder with files {suffixes}.")


def read_chunk(folder: DataFolder, chunk: Chunk, settings: ReaderSettings) -> Iterator[SourceItem]:
    """The record key is the path of the image in the source."""
    for name in chunk.names:
        path = posixpath.join(chunk.source, name)
        yield SourceRecord(chunk.split, name, path, path, None, ())
