"""Render a card as Markdown, and the Markdown as a page.

The template escapes every value, because class names and other texts of the data are untrusted.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import markdown
from markupsafe import Markup
from markupsafe import escape as escape_html

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.report.page_parts import MAX_ROWS
from detloom.components.evaluator.report.verdict_and_gates import format_mib, gate_rows, headline, override_text
from detloom.components.pages.formats import (
    escape_markdown,
    escape_markdown_line,
    format_number,
    format_signed,
)
from detloom.components.pages.load_template import add_filters, load_template
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.reading.redact import escape

Json = Mapping[str, Any]

_HERE = Path(__file__).parent
_DIFFERENCES = {
    "better": ", significantly better than the baseline",
    "worse": ", significantly worse than the baseline",
    "none": ", no significant difference from the baseline",
}


def format_markdown(card: Json) -> str:
    """Format the card as GitHub Markdown, with one heading per section."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,  # for macros, whose results are not escaped again
        finalize=_escape_value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    add_filters(environment)
    environment.filters |= {
        "line": lambda text: Markup(escape_markdown_line(text)),  # noqa: S704  # escaped for Markdown
        "pre": lambda text: escape_html(
            "\n".join(escape(line.expandtabs(4)) for line in text.strip("\n").splitlines())
        ),
        "mib": format_mib,
        "duration": format_duration,
        "ends": _format_ends,
        "signed_ends": lambda change: _format_ends(change, format_signed),
        "tensor_type": lambda tensor: f"{tensor['dtype']} [{', '.join(map(str, tensor['shape']))}]",
    }
    evaluation = card["evaluation"]
    decision = _decision_of(evaluation) if evaluation else None
    gates = gate_rows(decision.gates) if decision else []
    return environment.get_template("card.md.j2").render(
        card=card,
        headline=decision.sentence if decision else "Not evaluated: no evaluation was given.",
        max_rows=MAX_ROWS,
        gates=[[gate[key] for key in ("name", "required", "measured", "verdict_text")] for gate in gates],
        decision_sentence=_describe_decision(decision, evaluation) if decision else "",
        config_json=json.dumps(card["config"], sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False),
    )


def format_page(card: Json, text: str) -> str:
    """Format the Markdown text of the card as one page without scripts and external resources."""
    converter = markdown.Markdown(extensions=["tables"])
    converter.ESCAPED_CHARS = [*converter.ESCAPED_CHARS, *"~$=:|"]
    head, _, body = text.partition("\n## ")  # no other line begins like this before the first section
    verdict = headline(_decision_of(card["evaluation"]))[1] if card["evaluation"] else "off"
    return load_template(_HERE, "card.html.j2").render(
        title=escape(card["name"]),
        verdict=verdict,
        head=converter.convert(head),
        body=converter.reset().convert(f"## {body}"),
    )


def _escape_value(value: Any) -> Any:
    return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))  # noqa: S704  # escaped


def _decision_of(evaluation: Json) -> BlessingDecision:
    return BlessingDecision.from_dict({key: each for key, each in evaluation["decision"].items() if key != "sentence"})


def _describe_decision(decision: BlessingDecision, evaluation: Json) -> str:
    override = f"{override_text(decision.override)} " if decision.override else ""
    if not evaluation["comparison"]:
        return f"{override}Not compared with a baseline: {decision.baseline_problem or 'there was none'}."
    change = evaluation["comparison"]["AP"]
    words = _DIFFERENCES.get(decision.difference or "", "")
    ends = _format_ends(change, format_signed)
    return f"{override}Change of AP from the baseline: {format_signed(change['value'])} ({ends}){words}."


def _format_ends(interval: Json, format_end: Any = format_number) -> str:
    if interval.get("low") is None or interval.get("high") is None:
        return "–"
    return f"{format_end(interval['low'])} to {format_end(interval['high'])}"
