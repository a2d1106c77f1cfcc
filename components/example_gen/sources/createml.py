"""Read Create ML's JSON: a list of images, each with boxes by their centre in pixels."""

import re
from typing import Any

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources.image_entries import EntryFormat, ImageEntry, image_name, number_marks
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.shapes import box_at, read_numbers
from detloom.components.example_gen.sources.source_record import SourceObject
from detloom.schemas.run_file.data import IngestSettings


def _is_json(head: bytes) -> bool:
    has_image = b'"image"' in head or b'"imagefilename"' in head
    has_boxes = re.search(rb'"annotations?"\s*:', head) is not None  # not "annotation_id" of Label Studio
    return head.startswith(b"[") and has_image and has_boxes and b'"result"' not in head


def _read_entry(element: dict[str, Any], settings: IngestSettings) -> ImageEntry:
    marks = number_marks("annotations", element.get("annotations", element.get("annotation")))
    return ImageEntry((image_name(element.get("image", element.get("imagefilename"))),), marks, _read_box)


def _read_box(annotation: Any) -> list[SourceObject]:
    label = annotation.get("label") if isinstance(annotation, dict) else None
    if not isinstance(label, str) or not is_text(label.strip()):
        raise unreadable(f"'label' must be text, got {show(annotation)}")
    x, y, width, height = read_numbers(annotation.get("coordinates"), "x", "y", "width", "height")
    return [SourceObject(label.strip(), box_at(x, y, width / 2, height / 2))]


FORMAT = EntryFormat(
    DESCRIPTION="Create ML's JSON list of images with `annotations`",
    read_entry=_read_entry,
    is_json=_is_json,
)
