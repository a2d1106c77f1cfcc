"""Convert the example images to plain values for the page's template: groups, boxes as numbers of an SVG."""

import itertools
from collections.abc import Sequence

from detloom.components.evaluator.evaluation_result import ImageKind, ReportImage, ReportObject
from detloom.components.evaluator.report.page_parts import Json

_MAX_IMAGE_CHARS = 3_500_000  # keeps the page below 5 MB
_OBJECT_CHARS = 180  # of markup
_TEXT_PX = 26  # height of a label
# Name in score_and_layers.js, class of the color, text. Detections on crowds belong to the correct ones.
_LAYERS = (
    ("truth", "truth", "ground truth"),
    ("true", "true", "correct detections"),
    ("false", "false", "false positives"),
    ("missed", "missed", "missed objects"),
    ("labels", "", "labels"),
    ("masks", "", "masks"),
)
_IMAGE_GROUPS: tuple[tuple[ImageKind, str, str], ...] = (
    ("false", "Wrong detections with the highest scores", "Some may be real objects without a label."),
    ("missed", "Largest missed objects", "Labelled objects that the candidate did not detect, the largest first."),
    ("better", "Most improved images", "The candidate's F1 exceeds the baseline's by the largest margins."),
    ("worse", "Most degraded images", "The candidate's F1 is below the baseline's by the largest margins."),
    ("first", "First images of the split", "Selected regardless of their result."),
)


def image_groups(images: Sequence[ReportImage], start_steps: Sequence[int]) -> list[Json]:
    """Group the example images by kind; omit empty groups.

    Args:
        start_steps: first step of the slider of each model, which decides the boxes that are drawn without a script.
    """
    groups = [
        {
            "title": title,
            "sentence": sentence,
            "images": [_view(each, start_steps) for each in images if each.kind == kind],
        }
        for kind, title, sentence in _IMAGE_GROUPS
    ]
    return [group for group in groups if group["images"]]


def layers_of(images: Sequence[ReportImage]) -> list[tuple[str, str, str]]:
    """Return the layers as (name, color, text), with masks only if there are any."""
    has_masks = any(each.mask_uri for image in images for each in image.objects)
    return [layer for layer in _LAYERS if has_masks or layer[0] != "masks"]


def fit(images: Sequence[ReportImage]) -> list[ReportImage]:
    """Return the first images of each kind that fit on the page."""
    by_kind: dict[str, list[ReportImage]] = {}
    for image in images:
        by_kind.setdefault(image.kind, []).append(image)
    turns = [each for turn in itertools.zip_longest(*by_kind.values()) for each in turn if each is not None]
    counts = [len(each.uri) + sum(_OBJECT_CHARS + len(drawn.mask_uri) for drawn in each.objects) for each in turns]
    sizes = itertools.accumulate(counts)
    kept = {id(each) for each, size in zip(turns, sizes, strict=True) if size <= _MAX_IMAGE_CHARS}
    return [each for each in images if id(each) in kept]


def _view(image: ReportImage, start_steps: Sequence[int]) -> Json:
    width, height = image.size_wh
    return {
        "name": image.name,
        "text": image.text,
        "uri": image.uri,
        "width": width,
        "height": height,
        "objects": [_view_object(each, image.size_wh, start_steps) for each in image.objects],
    }


def _view_object(drawn: ReportObject, size_wh: tuple[int, int], start_steps: Sequence[int]) -> Json:
    x, y, width, height = drawn.box_xywh_px
    left, top, right, bottom = drawn.mask_area_px
    is_right = x + width / 2 > size_wh[0] / 2  # the label then ends at the right edge of the box
    text_y = max(y, _TEXT_PX) if drawn.layer != "truth" else min(y + height, size_wh[1] - _TEXT_PX)
    subject = ["subject"] if drawn.is_subject else []
    return {
        "classes": " ".join([drawn.layer, drawn.outcome, *subject, *_state(drawn, start_steps)]),
        "steps": " ".join(map(str, drawn.steps)),
        "x": _format(x),
        "y": _format(y),
        "width": _format(width),
        "height": _format(height),
        "is_right": is_right,
        "text_x": _format(x + width if is_right else x),
        "text_y": _format(text_y),
        "label": drawn.label,
        "mask": {"uri": drawn.mask_uri, "x": left, "y": top, "width": right - left, "height": bottom - top}
        if drawn.mask_uri
        else None,
        "points": [{"x": _format(px), "y": _format(py)} for px, py in drawn.points_xy_px],
    }


def _state(drawn: ReportObject, start_steps: Sequence[int]) -> list[str]:
    """Return the classes that `score_and_layers.js` sets first: the candidate's detections at its first threshold."""
    if drawn.layer == "truth":
        return ["missed"] if drawn.outcome != "crowd" and drawn.steps[0] <= start_steps[0] else []
    is_drawn = drawn.is_subject or drawn.steps[0] > start_steps[0]
    return [] if drawn.layer == "candidate" and is_drawn else ["off"]


def _format(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
