"""What every evaluation of a run has measured, beside its checkpoints; early stopping is decided from it alone."""

import json
import math
from pathlib import Path
from typing import Any

from detloom.schemas.config import EarlyStopping
from detloom.schemas.errors import InputError
from detloom.schemas.metric_names import is_better
from detloom.schemas.text_file import write_text_file
from detloom.trainer_module.coco_metrics import NO_VALUE
from detloom.trainer_module.strict_json import read_number, to_strict_json

HISTORY_FILE = "evaluations.json"


class EvaluationHistory:
    """Numbers by step. The file is written whole at each change, so that a killed run has all or nothing of one."""

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Raises:
            InputError: if the file is not ours.
        """
        self._path = path
        self._numbers: dict[int, dict[str, float]] = {}
        if path.is_file():
            try:
                rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
                self._numbers = {
                    int(row["step"]): {str(name): read_number(value) for name, value in row["numbers"].items()}
                    for row in rows
                }
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise InputError(
                    f"{path}: no history of evaluations ({error}); delete it, or train elsewhere."
                ) from None

    def __contains__(self, step: int) -> bool:
        return step in self._numbers

    @property
    def steps(self) -> list[int]:
        return sorted(self._numbers)

    def add(self, step: int, numbers: dict[str, float]) -> None:
        self._numbers[step] = numbers
        self._write()

    def forget_after(self, step: int) -> None:
        """Leave out later steps: the run goes on from this one and will measure them again."""
        kept = {known: numbers for known, numbers in self._numbers.items() if known <= step}
        if len(kept) < len(self._numbers):
            self._numbers = kept
            self._write()

    def evaluations_without_improvement(self, rule: EarlyStopping) -> int:
        """How many of the last evaluations did not improve the metric by more than `min_delta` over the best before.

        Those that had nothing to measure (-1) do not count; NaN is no improvement.
        """
        best: float | None = None
        count = 0
        for step in self.steps:
            value = self._numbers[step][rule.metric]
            if value == NO_VALUE:
                continue
            improves = best is None or is_better(rule.metric, value, best, min_delta=rule.min_delta)
            if improves and not math.isnan(value):
                best, count = value, 0
            else:
                count += 1
        return count

    def _write(self) -> None:
        rows = [{"step": step, "numbers": self._numbers[step]} for step in self.steps]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(self._path, to_strict_json(rows, indent=1))
