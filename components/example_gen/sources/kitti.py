"""Read KITTI: label_2/<stem>.txt and image_2/<stem>.png, or labels/ and images/; 15 columns per line, 16 with a score.

The columns are type, truncated, occluded, alpha, left, top, right, bottom (pixels), then the 3-D object, which is
ignored, as are `occluded` and `alpha`. `DontCare` marks a region without labels: counted, but not an object. Any
`truncated` above 0 sets the flag: KITTI states the fraction of the object outside the image, and the flag of the Object
Detection API only says that a part of it is.

A source is a list of stems (`ImageSets/train.txt`, or `train` for short) or a folder that contains both folders
(`training`); "" is everything. An image without a label file is not a record.
"""

import posixpath
from collections.abc import Iterator

from detloom.components.example_gen.data_folder import DataFolder, join_inside, unreadable
from detloom.components.example_gen.sources.csv_rows import parse_number
from detloom.components.example_gen.sources.image_entries import ImageEntry, read_record
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.layout import (
    find_image,
    find_split_word,
    first_fields,
    list_stems,
    name_splits,
    read_label_lines,
    read_names,
)
from detloom.components.example_gen.sources.name_index import find_folder, index_of, reject_ambiguous
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    cut_into_chunks,
)
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "label_2/*.txt with 15 columns and image_2/, or labels/ and images/"
FOLDERS = (("label_2", "image_2"), ("labels", "images"))  # folder of labels, folder of images
LISTS_DIR = "ImageSets"
DONT_CARE = "DontCare"
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_NUM_COLUMNS = (15, 16)


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find a folder of labels whose first line has KITTI's columns; splits come from lists, else from folders."""
    parts = ["", *folder.list_folders()]
    found = [(part, label) for part in parts if (label := _first_label(folder, part))]
    if not found:
        return None
    sentence = f"{found[0][1]} is a KITTI label"
    lists = [name for name in list_stems(folder, LISTS_DIR) if name.isalpha() and find_split_word(name)]
    if lists:
        return FormatEvidence(sentence, name_splits([f"{LISTS_DIR}/{name}.txt" for name in lists]))
    parts = [part for part, _ in found if part]
    return FormatEvidence(sentence, name_splits(parts) if len(parts) > 1 else {})


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List label files, relative to the data folder; those of a list without their suffix."""
    if source and not folder.is_folder(source):
        path = source if source.endswith(".txt") else f"{LISTS_DIR}/{source}.txt"
        stems = read_names(folder, path, split)
        labels_dir = next(iter(_find_labels_dirs(folder, "")), FOLDERS[0][0])
        names = (f"{labels_dir}/{stem.removesuffix('.txt')}" for stem in stems)
        yield from cut_into_chunks(split, path, names)
        return
    labels_dirs = _find_labels_dirs(folder, source)
    paths = (path for name in labels_dirs for path in folder.iter_files(name, (".txt",)))
    named_as = labels_dirs[0] if len(labels_dirs) == 1 else source or "."
    allowed = " or ".join(f"{labels} (beside {images})" for labels, images in FOLDERS)
    where = posixpath.join(folder.root, source)
    if_empty = f"{where}: no label files for split {split!r}, allowed: .txt files in {allowed}."
    yield from cut_into_chunks(split, named_as, paths, if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield one record per label file; its key is the path in the folder of labels, or in the data folder if there are
    several.
    """
    suffix = _IMAGE_SUFFIXES[0]
    is_list = chunk.source.endswith(".txt")
    if not is_list:
        folder.expect(chunk.names, MAX_ANNOTATION_BYTES)
    for name in chunk.names:
        name, label_suffix = (name, ".txt") if is_list else posixpath.splitext(name)
        labels_dir, stem = _split_name(name)
        key = stem if chunk.source == labels_dir or is_list else name
        path = join_inside(labels_dir, stem + label_suffix)
        if is_list and (path is None or not folder.is_file(path)):
            found = [each for each in index_of(folder).find(stem, (".txt",)) if each.startswith(f"{labels_dir}/")]
            if len(found) > 1:
                yield reject_ambiguous(chunk, key, f"the listed name {stem!r:.120}", found)
                continue
            path = found[0] if found else path
        if path is None:
            detail = f"the listed name {stem!r:.60} leads out of {labels_dir}/"
            yield chunk.reject_record(Reason.PATH_OUTSIDE, key, detail)
            continue
        lines = read_label_lines(folder, chunk, path, key)
        if isinstance(lines, Reject):
            yield lines
            continue
        images_dir = settings.images_dir or _images_dir(labels_dir)
        image_stem = posixpath.join(images_dir, posixpath.normpath(stem))
        image_path = image_stem + suffix  # usually the suffix of the previous image
        if not folder.is_file(image_path):
            image_path = find_image(folder, image_stem, _IMAGE_SUFFIXES) or image_stem + _IMAGE_SUFFIXES[0]
            suffix = posixpath.splitext(image_path)[1]
        yield from read_record(Chunk(chunk.split, path), key, image_path, ImageEntry((), lines, _read_object))


def _read_object(line: str) -> list[SourceObject] | str:
    """Return the object, or the kind of a region without labels."""
    columns = line.split(maxsplit=_NUM_COLUMNS[1])  # few parts, however long the line is
    if len(columns) not in _NUM_COLUMNS:
        raise unreadable(f"got {len(columns)} columns, allowed: {_NUM_COLUMNS[0]}, or {_NUM_COLUMNS[1]} with a score")
    name = columns[0]
    if name == DONT_CARE:
        return DONT_CARE
    if not is_text(name):
        raise unreadable(f"got the type {show(name)}, allowed: text")
    try:
        truncated = float(columns[1])
        xmin, ymin, xmax, ymax = map(float, columns[4:8])
    except ValueError:
        got = show(" ".join(columns[1:8]))
        raise unreadable(f"got {got}, allowed: numbers in columns 2 to 8") from None
    return [SourceObject(name, (xmin, ymin, xmax, ymax), truncated=truncated > 0)]


def _find_labels_dirs(folder: DataFolder, source: str) -> list[str]:
    """Find folders of labels: the source itself, or in the source, or in its subfolders."""
    if posixpath.basename(source).lower() in dict(FOLDERS):
        return [source]
    for parts in ([source], folder.list_folders(source)):
        paths = (find_folder(folder, posixpath.join(part, labels)) for part in parts for labels, _ in FOLDERS)
        found = list(filter(None, paths))
        if found:
            return found
    return []


def _first_label(folder: DataFolder, part: str) -> str | None:
    """Return the first KITTI label file among the first files with content."""
    for labels, images in FOLDERS:
        labels_dir = find_folder(folder, posixpath.join(part, labels))
        if labels_dir is None or find_folder(folder, posixpath.join(part, images)) is None:
            continue
        paths = folder.iter_files(labels_dir, (".txt",), recursive=False)
        for path, columns in first_fields(folder, filter(folder.has_content, paths)):
            if (
                len(columns) in _NUM_COLUMNS
                and not columns[0][0].isdigit()
                and None not in map(parse_number, columns[1:])
            ):
                return path
    return None


def _split_name(name: str) -> tuple[str, str]:
    """Split a path into the folder of labels and the rest."""
    parts = name.split("/")
    at = next((i for i, part in enumerate(parts) if part.lower() in dict(FOLDERS)), 0)
    return "/".join(parts[: at + 1]), "/".join(parts[at + 1 :])


def _images_dir(labels_dir: str) -> str:
    head, _, name = labels_dir.rpartition("/")
    return posixpath.join(head, dict(FOLDERS)[name.lower()])
