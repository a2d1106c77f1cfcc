"""Read Label Studio's exports JSON and JSON-MIN: a list of tasks, with regions in percent of the image.

Of several annotations of a task, the newest one that was not cancelled counts. The regions of others are left out, as
are key points, spans of text or audio, and regions without a label. A task without an annotation is rejected: what it
shows is unknown.
"""

import itertools
import math
import re
from typing import Any

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources import shapes
from detloom.components.example_gen.sources.image_entries import EntryFormat, ImageEntry, image_name, number_marks
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.source_record import SourceObject
from detloom.schemas.run_file.data import IngestSettings

_OTHER_ANNOTATION = "region of another annotation"
_REGION = re.compile(rb'"original_width"|"[a-z]+labels"\s*:\s*\[')
_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-(?=.)")  # of uploaded files; exports with images keep it


def _is_json(head: bytes) -> bool:
    return head.startswith(b"[") and (b'"result"' in head or _REGION.search(head) is not None)


def _read_task(task: dict[str, Any], settings: IngestSettings) -> ImageEntry:
    inner = task.get("data")
    data = inner if isinstance(inner, dict) else task
    regions, num_others = _find_regions(task)
    objects = [each for each in regions if isinstance(each, dict)]
    name = _file_name(image_name(_choose_image(data, objects)))
    names = [name, name.rpartition("/")[2], *(str(task[key]) for key in ("file_upload",) if is_text(task.get(key)))]
    names += [_UPLOAD_PREFIX.sub("", each) for each in names[1:]]
    sizes = (shapes.read_hw(each.get("original_height"), each.get("original_width")) for each in objects)
    hw = next(filter(None, sizes), None)
    marks = itertools.chain(number_marks("result", regions), itertools.repeat(("", _OTHER_ANNOTATION), num_others))
    return ImageEntry(tuple(names), marks, lambda each: _read_region(each, hw, settings.masks), hw, is_relative=not hw)


def _choose_image(data: dict[str, Any], objects: list[dict[str, Any]]) -> Any:
    """Return the image of the regions; raise a SourceError for regions of several images."""
    images = [value for value in data.values() if _is_image(value)]
    outlines = [each for each in objects if _find_labels(each.get("value", each)) is not None]
    targets = sorted({str(each["to_name"]) for each in outlines if "to_name" in each})
    if len(images) < 2 or not targets:
        return data.get("image") or next(iter(images), None)
    image = data.get(targets[0]) or data.get("image")
    if len(targets) > 1 or image is None:
        raise unreadable(
            f"the task has {len(images)} images and regions of {show(targets)}, allowed: regions of one image, whose "
            "tag is named like its key in 'data'; make a task for each image"
        )
    return image


def _is_image(value: Any) -> bool:
    return is_text(value) and _file_name(value).lower().endswith(IMAGE_SUFFIXES)


def _file_name(address: str) -> str:
    """Return the path of an image without scheme and query; that of a local file is in the query."""
    path, _, query = address.partition("?")
    return (query.removeprefix("d=") if query.startswith("d=") else path.rpartition("://")[2]).lstrip("/") or address


def _find_regions(task: dict[str, Any]) -> tuple[list[Any], int]:
    """Return the regions of a task, and the number of those that are left out; raise a SourceError without any."""
    if "data" not in task:  # JSON-MIN has a list of regions for each tag
        tags = (tag for tag in task.values() if isinstance(tag, list))
        regions = [region for tag in tags for region in tag if isinstance(region, dict)]  # not the texts of a note
        usable = [{"result": regions}] if regions or "annotation_id" in task else []
    else:
        annotations = task.get("annotations", task.get("completions"))
        found = annotations if isinstance(annotations, list) else []
        usable = [each for each in found if isinstance(each, dict) and isinstance(each.get("result"), list)]
        usable = [each for each in usable if not each.get("was_cancelled")]
    if not usable:
        raise unreadable("the task has no annotation; label it, or export without it")
    newest = max(usable, key=lambda each: str(each.get("created_at", "")))
    return newest["result"], sum(len(each["result"]) for each in usable if each is not newest)


def _read_region(region: Any, hw: tuple[int, int] | None, with_masks: bool) -> list[SourceObject] | str:
    """Return an object for each label of the region."""
    if region == _OTHER_ANNOTATION:
        return _OTHER_ANNOTATION
    value = region.get("value", region) if isinstance(region, dict) else None
    if not isinstance(value, dict):
        raise unreadable(f"a region must be an object with a 'value', got {show(region)}")
    labels = _find_labels(value)
    if labels is None:
        kind = region.get("type")
        return kind if isinstance(kind, str) and re.fullmatch("[a-z]{1,40}", kind) else "region without a label"
    if not labels or not all(map(is_text, labels)):
        raise unreadable(f"the labels must be text, got {show(labels)}")
    if region.get("image_rotation"):
        raise unreadable(f"image_rotation is {show(region['image_rotation'])}, allowed: 0; rotate the image file")
    box, mask = _read_outline(value, hw)
    return [SourceObject(label, box, mask=mask if with_masks else None) for label in labels]


def _find_labels(value: Any) -> list[Any] | None:
    """Return the labels of an outline in an image; None for anything else, such as a key point or a span of text."""
    if not isinstance(value, dict) or "keypointlabels" in value or "start" in value:
        return None
    return next((each for key, each in value.items() if key.endswith("labels") and isinstance(each, list)), None)


def _read_outline(value: dict[str, Any], hw: tuple[int, int] | None) -> tuple[shapes.Box, Any]:
    """Return box and mask in pixels; without the size of the image as fractions, and no mask."""
    height, width = hw or (1, 1)
    if "points" in value:
        points = [(x * width / 100, y * height / 100) for x, y in shapes.read_points(value["points"]) or ()]
        box, polygon = shapes.read_polygon(points, value["points"])
        return box, polygon if hw else None
    if "rle" in value:
        raise unreadable("a brush is not supported, allowed: rectangle, polygon, ellipse; export it as COCO")
    keys = ("radiusX", "radiusY") if "radiusX" in value else ("width", "height")
    *percent, degrees = shapes.read_numbers({"rotation": 0, **value}, "x", "y", *keys, "rotation")
    if degrees and not hw:
        raise unreadable(f"a rotated region needs original_width and original_height, got {show(value)}")
    x, y, side_x, side_y = (each * side / 100 for each, side in zip(percent, (width, height) * 2, strict=True))
    angle = math.radians(degrees)
    if "radiusX" in value:
        return shapes.box_around_ellipse(x, y, side_x, side_y, angle), None
    if not angle:
        return (x, y, x + side_x, y + side_y), None
    points = [(0.0, 0.0), (side_x, 0.0), (side_x, side_y), (0.0, side_y)]  # it turns around its upper left corner
    cosine, sine = (math.cos(angle), math.sin(angle)) if math.isfinite(angle) else (math.nan, math.nan)
    turned = [(x + dx * cosine - dy * sine, y + dx * sine + dy * cosine) for dx, dy in points]
    return shapes.read_polygon(turned, value)[0], None


FORMAT = EntryFormat(
    DESCRIPTION="Label Studio's JSON or JSON-MIN list of tasks",
    read_entry=_read_task,
    is_json=_is_json,
)
