"""Templates of pages: a component's own, in the frame of this folder."""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

import jinja2

from detloom.components.pages import formats

_HERE = Path(__file__).parent
_SORT_SCRIPT = "sort_tables.js"


@dataclass(frozen=True)
class InlineScript:
    """A script of ours as it stands between its tags, and what a Content-Security-Policy says to run nothing else."""

    text: str
    csp_source: str


def load_template(folder: Path, name: str) -> jinja2.Template:
    """A template in which all text is escaped. What it extends and imports is looked for in `folder`, then here."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = formats.format_count
    environment.filters["share"] = formats.format_share
    environment.filters["percent"] = formats.format_percent
    environment.filters["number"] = environment.filters["distance"] = formats.format_number
    environment.filters["signed"] = formats.format_signed
    environment.filters["short"] = formats.shorten
    environment.globals["sort_script"] = read_script(_HERE / _SORT_SCRIPT)
    return environment.get_template(name)


def read_script(path: Path) -> InlineScript:
    """The script in this file, which is one of ours."""
    text = path.read_text(encoding="utf-8")
    assert not any(mark in text for mark in ("</", "<!--")), path  # they end a script, or change how it is read
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return InlineScript(text, f"sha256-{base64.b64encode(digest).decode('ascii')}")
