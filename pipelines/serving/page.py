"""The web page of the server: drop an image, see boxes, masks and keypoints. It uses the server's REST API."""

import json
from dataclasses import dataclass
from pathlib import Path

from detloom.components.pages.load_template import load_template, read_script
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas.contracts import detections as names
from detloom.trainer_module.drawing.draw import color_of_class

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """A page; `policy` is its Content-Security-Policy header."""

    html: bytes
    policy: str


def format_page(model: ServedModel, min_score: float) -> Page:
    """Return the page of a model; `min_score` is the initial score threshold."""
    script = read_script(_HERE / "try_model.js")
    settings = {
        "url": f"/v1/models/{model.name}/versions/{model.version}:predict",
        "signature": names.SIGNATURE_ENCODED,
        "outputs": names.OUTPUT_NAMES,
        "shapeOutputs": (names.MASKS, names.KEYPOINTS, names.KEYPOINT_SCORES),
        "hasPixelBoxes": model.has_pixel_boxes,
        "classes": {
            class_id: {"name": name, "rgb": color_of_class(class_id)} for class_id, name in model.label_map.names_by_id
        },
    }
    template = load_template(_HERE, "try_model.html.j2")
    html = template.render(model=model, min_score=min_score, settings=json.dumps(settings), script=script)
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src '{script.csp_source}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode("utf-8"), policy)
