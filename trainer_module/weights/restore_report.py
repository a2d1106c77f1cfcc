"""The report of a restore: restored variables, others and the reasons, as a table and as JSON."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from detloom.schemas.reading.redact import escape
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.weights.freezing import PartCounts
from detloom.trainer_module.weights.variable_names import PARTS, part_of

REPORT_JSON = "restore_report.json"
REPORT_TEXT = "restore_report.txt"
_MAX_LISTED = 30  # lines per list in the text


@dataclass(frozen=True)
class RestoreRow:
    """A variable of the network.

    Attributes:
        keys: keys it was restored from; empty if it was not restored.
        reason: why it was not restored; empty if it was.
        is_mismatch: True if the checkpoint, not the settings, is the reason.
    """

    path: str
    shape: tuple[int, ...]
    keys: tuple[str, ...] = ()
    reason: str = ""
    is_mismatch: bool = False

    @property
    def num_parameters(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class RestoreReport:
    """The result of comparing stored weights with a network.

    Attributes:
        checkpoint: path, as given.
        kind: description of the checkpoint.
        asked, mode: `train.fine_tune_checkpoint_type`, and the mode used.
        share: share of the mode's parameters that are restored, 0 to 1.
        restored, fresh: variables, in the network's order.
        unread: keys of stored weights that are not used.
        refusal: reason not to use the checkpoint, one sentence; empty if there is none.
        trains: trained variables per part.
        note: further information, one sentence each; may be empty.
    """

    checkpoint: str
    kind: str
    asked: str
    mode: str
    share: float
    restored: tuple[RestoreRow, ...]
    fresh: tuple[RestoreRow, ...]
    unread: tuple[str, ...]
    refusal: str
    trains: tuple[PartCounts, ...]
    note: str = ""

    def sentence(self) -> str:
        """Return a summary for the log."""
        rows = (*self.restored, *self.fresh)
        chosen = f"'{self.mode}'" + (", chosen automatically" if self.asked == "auto" else "")
        return (
            f"{'Refused' if self.refusal else 'Restored'}: {len(self.restored)} of {len(rows)} variables, "
            f"{_parameters(self.restored)} of {_parameters(rows)} parameters, from {self.checkpoint}, {self.kind} "
            f"(checkpoint type {chosen}: {format_share(self.share)} of its parameters)."
        )


def write_report(report: RestoreReport, folder: Path) -> None:
    """Write both files, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {REPORT_JSON: json.dumps(asdict(report), indent=1) + "\n", REPORT_TEXT: format_report(report) + "\n"}
    for name, text in texts.items():
        write_text_file(folder / name, text)


def format_report(report: RestoreReport) -> str:
    """Format the summary, a table by part, and the variables that were not restored or not read."""
    return "\n".join(_lines(report))


def _lines(report: RestoreReport) -> Iterator[str]:
    yield report.sentence()
    if report.refusal:
        yield f"error: {report.refusal}"
    if report.note:
        yield f"note: {report.note}"
    yield ""
    yield f"{'':10}{'restored':>22}{'re-initialized':>22}{'trained':>22}"
    for part in PARTS:
        restored = [row for row in report.restored if part_of(row.path) == part]
        fresh = [row for row in report.fresh if part_of(row.path) == part]
        trains = next((trained for trained in report.trains if trained.part == part), None)
        trained = (trains.num_trained, trains.num_trained_parameters) if trains else (0, 0)
        cells = [(len(rows), _parameters(rows)) for rows in (restored, fresh)]
        yield f"{part:10}" + "".join(f"{f'{count} ({size})':>22}" for count, size in (*cells, trained))
    yield "variables (parameters)"
    if report.fresh:
        yield ""
        yield "Re-initialized:"
        yield from _cut([f"  {line}" for line in _fresh_lines(report.fresh)])
    if report.unread:
        yield ""
        yield "Not read:"
        yield from _cut([f"  {escape(key)}" for key in report.unread])


def _fresh_lines(rows: Sequence[RestoreRow]) -> Iterator[str]:
    """Yield a line per variable; parts that the settings exclude as a whole take one line."""
    whole = Counter((part_of(row.path), row.reason) for row in rows if not row.is_mismatch)
    for (part, reason), count in whole.items():
        yield f"{part}: {count} variables, {reason}"
    for row in rows:
        if row.is_mismatch:
            yield f"{row.path} {list(row.shape)}: {row.reason}"


def format_share(share: float) -> str:
    """Format a percentage, rounded down, so that 100.0% means all."""
    return f"{math.floor(1000 * share) / 10:.1f}%"


def _cut(lines: Sequence[str]) -> list[str]:
    num_others = len(lines) - _MAX_LISTED
    others = [f"  ... and {num_others} more; see {REPORT_JSON}"] if num_others > 0 else []
    return [*lines[:_MAX_LISTED], *others]


def _parameters(rows: Sequence[RestoreRow]) -> int:
    return sum(row.num_parameters for row in rows)
