"""The web page of the server: drop an image, see boxes, masks and keypoints. It uses the server's REST API."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.components.pages.load_template import load_template, read_script
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas.contracts import detections as names
from detloom.trainer_module.drawing.draw import color_of_class

_HERE = Path(__file__).parent
_TEMPLATE, _SCRIPT = "try_model.html.j2", "try_model.js"
_MAX_LISTED_NAMES = 20


@dataclass(frozen=True)
class Page:
    """A page; `policy` is its Content-Security-Policy header."""

    html: bytes
    policy: str


def format_page(model: ServedModel, *, min_score: float, max_request_bytes: int) -> Page:
    """Return the page of a model; `min_score` is the initial score threshold."""
    script = read_script(_HERE / _SCRIPT)
    settings = {
        "url": f"/v1/models/{model.name}/versions/{model.version}:predict",
        "signature": names.SIGNATURE_ENCODED,
        "outputs": names.OUTPUT_NAMES,
        "shapeOutputs": (names.MASKS, names.KEYPOINTS, names.KEYPOINT_SCORES),
        "hasPixelBoxes": model.has_pixel_boxes,
        "minScore": min_score,
        "maxRequestBytes": max_request_bytes,
        "classes": _format_classes(model),
    }
    class_names = model.label_map.names if model.label_map else ()
    html = load_template(_HERE, _TEMPLATE).render(
        model=model,
        class_names=class_names[:_MAX_LISTED_NAMES],
        num_more_names=len(class_names[_MAX_LISTED_NAMES:]),
        accepts_images=names.SIGNATURE_ENCODED in model.signatures,
        min_score=min_score,
        settings=json.dumps(settings),
        script=script,
    )
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src '{script.csp_source}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode("utf-8"), policy)


def _format_classes(model: ServedModel) -> dict[int, dict[str, Any]]:
    """Return name and color by class id; the colors are those of all other drawings."""
    pairs = model.label_map.names_by_id if model.label_map else ()
    return {class_id: {"name": name, "rgb": color_of_class(class_id)} for class_id, name in pairs}
