"""Pascal VOC: ImageSets/Main/<list>.txt, Annotations/<stem>.xml, JPEGImages/<file>.

Coordinates are taken as they stand (no shift by one), as the Object Detection API's conversion of Pascal VOC does, so
that a model trained on its TFRecords and one trained on ours see the same boxes.
"""

import re
from pathlib import Path
from typing import Any

from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException

from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord, SourceSplit, join_inside
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason, Reject

ANNOTATIONS_DIR = "Annotations"
LISTS_DIR = "ImageSets/Main"
DEFAULT_IMAGES_DIR = "JPEGImages"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")
_CLASS_LIST_LINE = re.compile(r"^(.*\S)\s+-?[01]$")  # lists of one class ("aeroplane_train") end in -1, 0 or 1
_BOX_FIELDS = ("xmin", "ymin", "xmax", "ymax")


def list_path(list_name: str) -> str:
    return f"{LISTS_DIR}/{list_name}.txt"


def read_voc_split(folder: Path, split: str, list_name: str, images_dir: str) -> SourceSplit:
    """Read the records that one list names.

    A missing or damaged annotation file quarantines its record. The image is the file that `<filename>` names; where
    there is no such file, the one with the stem of the annotation (files are often renamed after labelling).

    Raises:
        InputError: if the list itself cannot be read or is empty.
    """
    source = list_path(list_name)
    result = SourceSplit(split=split, source=source)
    for stem in _read_list(folder, source, split):
        annotation_path = join_inside(ANNOTATIONS_DIR, stem + ".xml")
        outcome: SourceRecord | tuple[Reason, str, str]
        if annotation_path is None:
            outcome = (Reason.PATH_OUTSIDE, source, f"the listed name {stem!r} leads out of {ANNOTATIONS_DIR}/")
        else:
            outcome = _read_record(folder, split, stem, annotation_path, images_dir or DEFAULT_IMAGES_DIR, result)
        if isinstance(outcome, SourceRecord):
            result.records.append(outcome)
        else:
            reason, file, detail = outcome
            result.rejects.append(
                Reject(reason=reason, scope="record", split=split, file=file, record_key=stem, detail=detail)
            )
    return result


def _read_list(folder: Path, source: str, split: str) -> list[str]:
    try:
        lines = (folder / source).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        there = sorted(path.stem for path in (folder / LISTS_DIR).glob("*.txt"))
        raise InputError(
            f"{folder / source}: the list of split {split!r} cannot be read ({error}); lists there: {there}."
        ) from None
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        raise InputError(f"{folder / source}: the list of split {split!r} is empty; name at least one image in it.")
    return [match.group(1) if (match := _CLASS_LIST_LINE.match(line)) else line for line in lines]


def _read_record(
    folder: Path, split: str, stem: str, annotation_path: str, images_dir: str, result: SourceSplit
) -> SourceRecord | tuple[Reason, str, str]:
    try:
        root = ElementTree.parse(folder / annotation_path, forbid_dtd=True).getroot()
    except FileNotFoundError:
        return Reason.MISSING_FILE, annotation_path, "the annotation file is missing"
    except DefusedXmlException as error:
        what = type(error).__name__
        return Reason.UNREADABLE_ANNOTATION, annotation_path, f"a DTD or entity declaration is refused ({what})"
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:
        return Reason.UNREADABLE_ANNOTATION, annotation_path, f"not readable as XML: {error}"
    if root is None or root.tag != "annotation":
        return Reason.UNREADABLE_ANNOTATION, annotation_path, "the root element is not <annotation>"
    image_path = _find_image(folder, images_dir, (root.findtext("filename") or "").strip(), stem)
    elements = root.findall("object")
    result.num_boxes_in += len(elements)
    if image_path is None:
        result.num_boxes_quarantined += len(elements)
        name = root.findtext("filename")
        return Reason.PATH_OUTSIDE, annotation_path, f"<filename> {name!r} leads out of {images_dir}/"
    record = SourceRecord(split, stem, image_path, annotation_path, _declared_hw(root), ())
    objects = []
    for index, element in enumerate(elements):
        item = _read_object(element)
        if isinstance(item, SourceObject):
            objects.append(item)
        else:
            result.rejects.append(record.reject_box(Reason.UNREADABLE_ANNOTATION, f"object {index}: {item}"))
    return SourceRecord(split, stem, image_path, annotation_path, record.declared_hw, tuple(objects))


def _find_image(folder: Path, images_dir: str, filename: str, stem: str) -> str | None:
    """The image's relative path, whether or not there is such a file; None if it leads outside."""
    named = join_inside(images_dir, filename) if filename else join_inside(images_dir, stem + IMAGE_SUFFIXES[0])
    if named is None or (folder / named).is_file():
        return named
    by_stem = (f"{images_dir}/{stem}{suffix}" for suffix in IMAGE_SUFFIXES)
    return next((path for path in by_stem if (folder / path).is_file()), named)


def _declared_hw(root: Any) -> tuple[int, int] | None:
    """Height and width of `<size>`; None where it is absent, unreadable or zero, as some tools write it."""
    try:
        height, width = int(float(root.findtext("size/height"))), int(float(root.findtext("size/width")))
    except (TypeError, ValueError, OverflowError):
        return None
    return (height, width) if height > 0 and width > 0 else None


def _read_object(element: Any) -> SourceObject | str:
    name = (element.findtext("name") or "").strip()
    if not name:
        return "<name> is missing or empty"
    box = []
    for key in _BOX_FIELDS:
        text = element.findtext(f"bndbox/{key}")
        try:
            box.append(float(text))
        except (TypeError, ValueError):
            return f"class {name!r}: <bndbox> needs a number {key}, got {text!r}"
    return SourceObject(
        class_name=name,
        box_xyxy_px=(box[0], box[1], box[2], box[3]),
        difficult=(element.findtext("difficult") or "").strip() == "1",
        truncated=(element.findtext("truncated") or "").strip() == "1",
    )
