"""Load page templates: a component's own template inside the shared frame of this folder."""

import base64
import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import jinja2

from detloom.components.pages import formats

_HERE = Path(__file__).parent
_SORT_SCRIPT = "sort_tables.js"
ZOOM_SCRIPT = "zoom.js"  # for pages with zoomable pictures


@dataclass(frozen=True)
class InlineScript:
    """An inline script and the Content-Security-Policy source that permits exactly this script."""

    text: str
    csp_source: str


def load_template(folder: Path, name: str) -> jinja2.Template:
    """Load a template that escapes all text; it can extend and import templates of `folder` and of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    add_filters(environment)
    environment.globals["today"] = lambda: datetime.now(timezone.utc).date().isoformat()
    environment.globals["sort_script"] = read_shared_script(_SORT_SCRIPT)
    return environment.get_template(name)


def add_filters(environment: jinja2.Environment) -> None:
    """Add the filters that format numbers and names."""
    environment.filters["count"] = formats.format_count
    environment.filters["share"] = formats.format_share
    environment.filters["percent"] = formats.format_percent
    environment.filters["number"] = environment.filters["distance"] = formats.format_number
    environment.filters["signed"] = formats.format_signed
    environment.filters["short"] = formats.shorten


def read_shared_script(name: str) -> InlineScript:
    """Read one of the scripts of this folder."""
    return read_script(_HERE / name)


def read_script(path: Path) -> InlineScript:
    """Read one of the package's own scripts."""
    text = path.read_text(encoding="utf-8")
    assert not any(mark in text for mark in ("</", "<!--")), path  # these end a script or change how it is parsed
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return InlineScript(text, f"sha256-{base64.b64encode(digest).decode('ascii')}")
