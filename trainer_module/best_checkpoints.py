"""The weights of a run's best evaluations, with their numbers.

`best.json` is all there is to know about them: weights count if it names them. It is renamed into place after the
weights that it names are written, and before those that it no longer names are deleted, so that whatever moment a
process is killed at, every entry has its weights.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.metric_names import is_better
from detloom.schemas.text_file import write_text_file
from detloom.trainer_module.checkpoints.own_checkpoint import BEST_FILE
from detloom.trainer_module.evaluate import Evaluation
from detloom.trainer_module.run_checkpoints import sync
from detloom.trainer_module.strict_json import read_number, to_strict_json

_OURS = re.compile(r"(ckpt-\d+)(?:\..*|_temp)")  # TensorFlow writes into a folder `<name>_temp` first


@dataclass(frozen=True, kw_only=True)
class BestEntry:
    """Weights that are kept.

    Attributes:
        value: of the metric that the archive goes by.
        path: of the weights, without ending.
        numbers: all that the evaluation measured, by name.
    """

    step: int
    value: float
    path: Path
    numbers: dict[str, float]


class BestCheckpoints:
    """The `keep` best evaluations of a run by one metric; of equal ones the later is better: it trained longer."""

    def __init__(self, best_dir: Path, metric: str, keep: int) -> None:
        """Read what is there; nothing is changed.

        Raises:
            InputError: if `best.json` is not one, or goes by another metric.
        """
        self._folder, self._metric, self._keep = best_dir, metric, keep
        self._entries = self._read()

    @property
    def best(self) -> BestEntry | None:
        return self._entries[0] if self._entries else None

    @property
    def entries(self) -> tuple[BestEntry, ...]:
        """The best first."""
        return tuple(self._entries)

    def consider(self, step: int, evaluation: Evaluation, write: Callable[[Path], None]) -> bool:
        """Keep the weights of this evaluation if they are among the best; what falls out is deleted.

        Args:
            write: writes the weights that were evaluated under a path without ending.

        Returns:
            Whether they are kept. They are the best of all if `best.step` is this step.

        Raises:
            InputError: if the metric is none of the evaluation's.
        """
        value = evaluation.value_of(self._metric)
        if any((known.step, known.value) == (step, value) for known in self._entries):  # measured a second time
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
        self._delete_unnamed()  # of an earlier attempt: TensorFlow would write beside it
        write(path)
        for file in self._folder.glob(f"{path.name}.*"):
            sync(file)
        self._replace(kept)
        return True

    def forget_after(self, step: int) -> None:
        """Leave out entries of later steps: the run goes on from this one and will measure them again."""
        kept = [entry for entry in self._entries if entry.step <= step]
        if len(kept) < len(self._entries):
            self._replace(kept)

    def _ranked(self, entries: Iterable[BestEntry]) -> list[BestEntry]:
        ranked: list[BestEntry] = []
        for entry in sorted(entries, key=lambda entry: entry.step, reverse=True):
            place = next((i for i, known in enumerate(ranked) if self._beats(entry, known)), len(ranked))
            ranked.insert(place, entry)
        return ranked

    def _beats(self, one: BestEntry, other: BestEntry) -> bool:
        """What is not a number is worse than any."""
        if math.isnan(other.value):
            return not math.isnan(one.value)
        return is_better(self._metric, one.value, other.value)

    def _replace(self, entries: list[BestEntry]) -> None:
        rows = [{**asdict(entry), "path": entry.path.name} for entry in entries]
        write_text_file(self._folder / BEST_FILE, to_strict_json({"metric": self._metric, "entries": rows}, indent=1))
        self._entries = entries
        self._delete_unnamed()

    def _delete_unnamed(self) -> None:
        named = {entry.path.name for entry in self._entries}
        for file in self._folder.glob("ckpt-*"):
            match = _OURS.fullmatch(file.name)
            if match is None or match.group(1) in named:
                continue
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    def _entry(self, row: dict[str, Any]) -> BestEntry:
        """The path follows from the step: a list cannot name weights elsewhere."""
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
                f"{path}: is no list of the best weights ({error}); put it back, or move it and the weights beside it "
                "away to start a new one."
            ) from None
        if metric != self._metric:
            raise InputError(
                f"{path}: the best by {metric}, got {self._metric} as eval.best_metric; train into another folder."
            )
        return self._ranked(entries)
