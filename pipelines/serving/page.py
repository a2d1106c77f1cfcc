"""The page for trying a model: drop a picture, see boxes. It asks the same server by the REST contract."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.components.pages.load_template import InlineScript, load_template
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas import detections as names
from detloom.trainer_module.draw import color_of_class

_HERE = Path(__file__).parent
_TEMPLATE, _SCRIPT = "try_model.html.j2", "try_model.js"
# The policy of a file says what it may do without a server. Here it travels as a header, which also says who may frame
# the page; of two policies both hold, and the frame's own allows no request.
_FRAME_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n')
_MAX_LISTED_NAMES = 20


@dataclass(frozen=True)
class Page:
    """`policy` is the Content-Security-Policy that it is sent with."""

    html: bytes
    policy: str


def format_page(model: ServedModel, *, min_score: float, max_request_bytes: int) -> Page:
    """The page of one model; `min_score` is where its slider begins."""
    script = _read_script()
    settings = {
        "url": f"/v1/models/{model.name}/versions/{model.version}:predict",
        "signature": names.SIGNATURE_ENCODED,
        "outputs": names.OUTPUT_NAMES,
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
        takes_pictures=names.SIGNATURE_ENCODED in model.signatures,
        min_score=min_score,
        settings=json.dumps(settings),
        script=script,
    )
    html, num_policies = _FRAME_POLICY.subn("", html)
    assert num_policies == 1, "the frame's own policy would forbid the page to ask the server"
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src '{script.csp_source}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode("utf-8"), policy)


def _format_classes(model: ServedModel) -> dict[int, dict[str, Any]]:
    """Name and colour by class id; the colour is that of pictures elsewhere."""
    pairs = model.label_map.names_by_id if model.label_map else ()
    return {class_id: {"name": name, "rgb": color_of_class(class_id)} for class_id, name in pairs}


def _read_script() -> InlineScript:
    text = (_HERE / _SCRIPT).read_text(encoding="utf-8")
    assert not any(mark in text for mark in ("</", "<!--")), _SCRIPT  # they end a script, or change how it is read
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return InlineScript(text, f"sha256-{base64.b64encode(digest).decode('ascii')}")
