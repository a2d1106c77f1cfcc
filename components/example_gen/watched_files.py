"""Which files of a data folder an ingestion depends on: their names, bytes and times make the input fingerprint.

An `input_base` may hold `{SPAN}`, `{VERSION}` or `{YYYY}`/`{MM}`/`{DD}` (with a width as in `{SPAN:3}`). TFX resolves
them in the patterns of the annotation files only, so the base is cut in front of the first of them and the patterns
carry the rest.
"""

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources import coco, voc

_PLACEHOLDER = re.compile(r"\{(?:SPAN|VERSION)(?::\d+)?\}|\{YYYY\}|\{MM\}|\{DD\}")
_VOC_ANNOTATIONS = f"{voc.ANNOTATIONS_DIR}/*.xml"


def split_input_base(input_base: str) -> tuple[str, str]:
    """The literal folder in front of the first placeholder, and the rest ("" where there is none)."""
    parts = input_base.rstrip("/").split("/")
    for index, part in enumerate(parts):
        if _PLACEHOLDER.search(part):
            return "/".join(parts[:index]) or "/", "/".join(parts[index:])
    return "/".join(parts) or "/", ""


def annotation_patterns(params: ExampleGenParams) -> dict[str, str]:
    """By name, patterns relative to the data folder, for TFX; each must match a file."""
    if params.data_format == "voc":
        sources = {f"list-{split}": path for split, path in _source_paths(params).items()}
        return {"annotations": _VOC_ANNOTATIONS, **{name: glob.escape(path) for name, path in sources.items()}}
    return {f"annotations-{split}": glob.escape(path) for split, path in _source_paths(params).items()}


def find_missing_file(folder: Path, params: ExampleGenParams) -> str | None:
    """The first file, or pattern of files, that the splits need and that the data folder lacks; None if it has all."""
    if params.data_format == "voc" and next(folder.glob(_VOC_ANNOTATIONS), None) is None:
        return _VOC_ANNOTATIONS
    return next((path for path in _source_paths(params).values() if not (folder / path).is_file()), None)


def _source_paths(params: ExampleGenParams) -> dict[str, str]:
    """By split, the file that it names, relative to the data folder; no pattern."""
    if params.data_format == "voc":
        return {split: voc.list_path(source) for split, source in params.splits.items()}
    return dict(params.splits)


def find_data_folder(input_base: str, resolved_patterns: Mapping[str, str], params: ExampleGenParams) -> Path:
    """The data folder, given the annotation patterns with the placeholders filled in by TFX's driver."""
    name, pattern = next(iter(annotation_patterns(params).items()))
    resolved = resolved_patterns[name]
    assert resolved.endswith(pattern), (resolved, pattern)
    return Path(input_base) / resolved.removesuffix(pattern)


def fingerprint_images(folder: Path, params: ExampleGenParams) -> str:
    """A digest of names, sizes and times of all files below the image folder, links followed; contents are not read."""
    if params.data_format == "voc":
        root = folder / (params.images_dir or voc.DEFAULT_IMAGES_DIR)
    else:
        root = folder / coco.find_images_dir(folder, params.images_dir)
    digest = hashlib.sha256()
    num_files = 0
    seen: set[str] = set()
    for parent, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a loop of links
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(files):
            path = os.path.join(parent, name)
            try:
                status = os.stat(path)
            except OSError:  # a broken link; the record is quarantined when it is read
                continue
            digest.update(
                f"{os.path.relpath(path, root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace")
            )
            num_files += 1
    return f"images,num_files:{num_files},sha256:{digest.hexdigest()}"
