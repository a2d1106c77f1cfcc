"""Find COCO's files: the JSON files with boxes, and the image folder of each."""

import os
import posixpath
import re

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources import layout

DEFAULT_IMAGES_DIR = "images"
BESIDE_IMAGES = "_annotations.coco.json"  # Roboflow's name: one file in each split's folder, beside its images
_ANNOTATION_DIRS = ("annotations", "annotation", "labels")
_END_BYTES = 16 * 1024  # read at each end of a file; official files start with 2 KB of `info` and `licenses`
_LISTS = re.compile(rb'"(images|annotations)"\s*:\s*\[')
_ANNOTATIONS = re.compile(rb'"annotations"\s*:\s*\[')
_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[')
_ELEMENTS = re.compile(rb'"(image_id|file_name)"\s*:')
_SEGMENTS = re.compile(rb'"segments_info"\s*:')  # panoptic
# Official files without boxes.
_NAMES_WITHOUT_BOXES = re.compile(r"captions|^panoptic_|^image_info_")
_MAX_FILES = 50  # files opened to detect COCO; a LabelMe folder has one per image


def find_files(folder: DataFolder) -> list[str]:
    """Return the annotation files with boxes; of several for one split (instances, keypoints), the usual one."""
    folders = folder.list_folders()
    annotation_dirs = [path for path in folders if path.lower() in _ANNOTATION_DIRS]
    candidates = [path for part in ("", *annotation_dirs) for path in folder.list_files(part, (".json",))[:_MAX_FILES]]
    for part in folders:
        if layout.find_split_word(part):
            candidates.append(posixpath.join(part, BESIDE_IMAGES))
            candidates.extend(path for path in folder.list_files(part, (".json",))[:4] if path not in candidates)
    found = [path for path in candidates if _looks_like_coco(folder, path)]
    instances = {path.replace("instances", "") for path in found if "instances" in path}
    return [path for path in found if path.replace("person_keypoints", "") not in instances]


def _looks_like_coco(folder: DataFolder, path: str) -> bool:
    """Judge by the name and both ends of the file: it has images or annotations, and no sign of a boxless kind."""
    if _NAMES_WITHOUT_BOXES.search(posixpath.basename(path)):
        return False
    try:
        with folder.open(path) as file:
            head = file.read(_END_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - _END_BYTES))
            tail = file.read(_END_BYTES)
    except (SourceError, OSError):
        return False
    if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return False
    if size <= len(head) + len(tail):  # the whole file was read
        head, tail = head + tail, b""
        if not _ANNOTATIONS.search(head):
            return False
    if _SEGMENTS.search(head) or _SEGMENTS.search(tail):
        return False
    if _LISTS.search(head) or _LISTS.search(tail):
        return True
    # The categories come first, so many that the other lists start outside of both ends.
    return _CATEGORIES.search(head) is not None and _ELEMENTS.search(tail) is not None


def find_images_dir(folder: DataFolder, source: str, file_names: list[str]) -> str:
    """Return the folder that file names are relative to: the usual folder with most of the first images.

    If none has any: images/ if the data folder has one, else the folder of the data.
    """
    beside = posixpath.dirname(source)
    base = posixpath.dirname(beside) if posixpath.basename(beside).lower() in _ANNOTATION_DIRS else beside
    stem = posixpath.splitext(posixpath.basename(source))[0]
    names = [stem.rpartition("_")[2], layout.find_split_word(stem)]  # instances_train2017: train2017, train
    parts = [DEFAULT_IMAGES_DIR, *(f"{DEFAULT_IMAGES_DIR}/{name}" for name in names if name), *filter(None, names), ""]
    candidates = [posixpath.join(base, part).rstrip("/") for part in parts]
    default = DEFAULT_IMAGES_DIR if folder.is_folder(DEFAULT_IMAGES_DIR) else base
    if posixpath.basename(source) == BESIDE_IMAGES:
        candidates, default = [beside, *candidates], beside
    return layout.choose_images_dir(folder, [*candidates, beside, DEFAULT_IMAGES_DIR, ""], file_names, default)
