"""The page about a migration from the Object Detection API, as Markdown."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from detloom.components.pages.formats import escape_markdown
from detloom.pipelines.init.run_file_text import Choices
from detloom.schemas.odapi.pipeline_config import FieldNote, PipelineConfigReport
from detloom.schemas.reading.redact import show_address
from detloom.schemas.reading.tree_diff import leaves
from detloom.schemas.reading.typed_dict import format_key_path, show_value


def format_page(
    config: Path,
    run_file: Path,
    report: PipelineConfigReport,
    choices: Choices,
    decisions: Sequence[str],
    label_map: Path,
) -> str:
    """Return the page.

    Args:
        choices: the content of the run file.
        decisions: what the user has to decide, one sentence each.
    """
    name = shlex.quote(run_file.name)
    return "\n".join(
        [
            f"# Migration of {escape_markdown(config.name)}",
            "",
            f"`detloom init --from-odapi` wrote {escape_markdown(run_file.name)} for "
            f"{escape_markdown(show_address(str(config.absolute())))}. The run file reads this file, which stays as it "
            f"is: {len(report.mapped)} of its fields are mapped, {len(report.ignored)} ignored, and none is refused.",
            "",
            "## Decide",
            "",
            *(f"- {escape_markdown(each)}" for each in decisions),
            "",
            "## Run",
            "",
            "```",
            f"detloom config check {name}",
            f"detloom restore-report --config {name} --label-map {shlex.quote(str(label_map))}",
            f"detloom run {name}",
            "```",
            "",
            "## Settings in the run file",
            "",
            "They override the configuration; all other settings are its own or defaults.",
            "",
            *_table(("key", "value", "reason"), _chosen(choices)),
            "",
            "## Ignored",
            "",
            "These fields do not change results in detloom.",
            "",
            *_table(("field", "value", "line", "reason"), map(_ignored, report.ignored)),
            "",
            "## Mapped",
            "",
            *_table(("field", "value", "line", "key"), map(_mapped, report.mapped)),
            "",
        ]
    )


def _chosen(choices: Choices) -> Iterator[tuple[str, ...]]:
    """Yield a row for each setting; the reason of a section is that of its first setting."""
    reasons = dict(choices.reasons)
    for path, value in leaves(choices.settings):
        key = format_key_path(path)
        reason = reasons.pop(key, "") or reasons.pop(key.rpartition(".")[0], "")
        yield f"`{key}`", escape_markdown(show_value(path, value)), escape_markdown(reason)


def _ignored(note: FieldNote) -> tuple[str, ...]:
    return f"`{note.path}`", escape_markdown(note.value), _line(note), escape_markdown(note.reason)


def _mapped(note: FieldNote) -> tuple[str, ...]:
    return f"`{note.path}`", escape_markdown(note.value), _line(note), f"`{note.reason}`"


def _line(note: FieldNote) -> str:
    return note.where.rpartition(":")[2]


def _table(head: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
