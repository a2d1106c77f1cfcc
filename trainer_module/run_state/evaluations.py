"""The numbers of every evaluation of a run, and the weights of the best ones."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detloom.schemas.contracts.metric_names import is_better
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import EarlyStopping
from detloom.schemas.reading.replace_when_done import sync
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.evaluation.coco_metrics import NO_VALUE
from detloom.trainer_module.evaluation.split_evaluator import Evaluation
from detloom.trainer_module.files.strict_json import read_number, to_strict_json
from detloom.trainer_module.weights.own_checkpoint import BEST_FILE

HISTORY_FILE = "evaluations.json"
_WEIGHTS_FILE = re.compile(r"(ckpt-\d+)(?:\..*|_temp)")  # TensorFlow first writes to a folder `<name>_temp`


class EvaluationHistory:
    """Numbers by step. The file is replaced atomically at each change."""

    def __init__(self, path: Path) -> None:
        """Read the existing file.

        Raises:
            InputError: if the file is invalid.
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
                    f"{path}: not a valid history of evaluations ({error}); delete it, or train elsewhere."
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
        """Drop later steps, because training resumes from this step and evaluates them again."""
        kept = {known: numbers for known, numbers in self._numbers.items() if known <= step}
        if len(kept) < len(self._numbers):
            self._numbers = kept
            self._write()

    def evaluations_without_improvement(self, rule: EarlyStopping) -> int:
        """Count the last evaluations that did not improve the metric by more than `min_delta` over the best before.

        Evaluations without a measurement (-1) are ignored; NaN is not an improvement.
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


@dataclass(frozen=True, kw_only=True)
class BestEntry:
    """Weights that are kept.

    Attributes:
        value: value of the metric that ranks the entries.
        path: path of the weights, without suffix.
        numbers: all numbers of the evaluation, by name.
    """

    step: int
    value: float
    path: Path
    numbers: dict[str, float]


class BestCheckpoints:
    """The `keep` best evaluations of a run by one metric; of equal ones, the later is better: it trained longer."""

    def __init__(self, best_dir: Path, metric: str, keep: int) -> None:
        """Read the existing list; nothing is changed.

        Raises:
            InputError: if `best.json` is invalid or uses another metric.
        """
        self._folder, self._metric, self._keep = best_dir, metric, keep
        self._entries = self._read()

    @property
    def best(self) -> BestEntry | None:
        return self._entries[0] if self._entries else None

    @property
    def entries(self) -> tuple[BestEntry, ...]:
        """The entries, best first."""
        return tuple(self._entries)

    def consider(self, step: int, evaluation: Evaluation, write: Callable[[Path], None]) -> bool:
        """Keep the weights of this evaluation if they are among the best; delete the ones they displace.

        Args:
            write: writes the evaluated weights to a path without suffix.

        Returns:
            True if they are kept. They are the best of all if `best.step` is this step.

        Raises:
            InputError: if the evaluation has no such metric.
        """
        value = evaluation.value_of(self._metric)
        if any((known.step, known.value) == (step, value) for known in self._entries):  # evaluated a second time
            return True
        path = self._folder / f"ckpt-{step}"
        entry = BestEntry(step=step, value=value, path=path, numbers=evaluation.numbers())
        others = [known for known in self._entries if known.step != step]
        kept = self._ranked([*others, entry])[: self._keep]
        if len(others) < len(self._entries):  # its weights are about to be overwritten
            self._replace(others)
        if entry not in kept:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        self._delete_unnamed()  # leftovers of an earlier attempt, which TensorFlow would not overwrite
        write(path)
        for file in self._folder.glob(f"{path.name}.*"):
            sync(file)
        self._replace(kept)
        return True

    def forget_after(self, step: int) -> None:
        """Drop entries of later steps, because training resumes from this step and evaluates them again."""
        kept = [entry for entry in self._entries if entry.step <= step]
        if len(kept) < len(self._entries):
            self._replace(kept)

    def _ranked(self, entries: Iterable[BestEntry]) -> list[BestEntry]:
        """Sort the entries, best first; NaN is worse than any number."""
        sign = 1 if is_better(self._metric, 0.0, 1.0) else -1

        def place(entry: BestEntry) -> tuple[bool, float, int]:
            is_nan = math.isnan(entry.value)
            return is_nan, 0.0 if is_nan else sign * entry.value, -entry.step

        return sorted(entries, key=place)

    def _replace(self, entries: list[BestEntry]) -> None:
        rows = [{**asdict(entry), "path": entry.path.name} for entry in entries]
        write_text_file(self._folder / BEST_FILE, to_strict_json({"metric": self._metric, "entries": rows}, indent=1))
        self._entries = entries
        self._delete_unnamed()

    def _delete_unnamed(self) -> None:
        named = {entry.path.name for entry in self._entries}
        for file in self._folder.glob("ckpt-*"):
            match = _WEIGHTS_FILE.fullmatch(file.name)
            if match is None or match.group(1) in named:
                continue
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    def _entry(self, row: dict[str, Any]) -> BestEntry:
        """Read an entry. Its path is derived from the step, so that the file cannot name weights elsewhere."""
        step, numbers = int(row["step"]), {str(name): read_number(number) for name, number in row["numbers"].items()}
        return BestEntry(
            step=step, value=read_number(row["value"]), path=self._folder / f"ckpt-{step}", numbers=numbers
        )

    def _read(self) -> list[BestEntry]:
        path = self._folder / BEST_FILE
        if not path.is_file():
            return []
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            metric = stored["metric"]
            entries = [self._entry(row) for row in stored["entries"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError) as error:
            raise InputError(
                f"{path}: not a valid list of the best weights ({error}); restore it, or move it and the weights "
                "beside it away to start a new one."
            ) from None
        if metric != self._metric:
            raise InputError(
                f"{path}: ranked by {metric}, got {self._metric} as eval.best_metric; train into another folder."
            )
        return self._ranked(entries)
