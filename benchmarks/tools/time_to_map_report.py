"""Write table, JSON and plots of `time_to_map.py`."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.coco_scores import Score

from detloom.components.pages.charts import Line, format_svg

GOALS = {"AP": 0.60, "AP50": 0.92}
NAMES = {
    "ours": "detloom, its recipe",
    "zoo": "Object Detection API, the zoo's hyperparameters",
    "same": "Object Detection API, our hyperparameters",
}


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The checkpoints of one training run, in order.

    Attributes:
        others: share of the machine that other processes used during training.
        unsaid: our settings that the system's configuration does not support.
    """

    system: str
    seed: int
    num_steps: int
    others: float
    unsaid: tuple[str, ...]
    scores: tuple[Score, ...]


def write_report(runs: Sequence[RunScores], output: Path, settings: dict[str, Any]) -> None:
    """Write scores.json and a plot for each metric; print the table."""
    leads = {metric: list(leads_at_their_checkpoints(runs, metric)) for metric in GOALS}
    report = {"settings": settings, "runs": [asdict(run) for run in runs], "leads": leads}
    (output / "scores.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for metric, goal in GOALS.items():
        lines = [_line(system, _of(runs, system), metric) for system in NAMES if _of(runs, system)]
        title = f"BCCD test split from scratch, two cores: {metric} (mean and range of the seeds)"
        svg = format_svg(title, "minutes of training", metric, lines, y_range=(0.0, 1.0), marked_ys=(goal,))
        (output / f"{metric}.svg").write_text(svg, encoding="utf-8")
    _print_table(runs, leads)


def leads_at_their_checkpoints(runs: Sequence[RunScores], metric: str) -> Iterator[dict[str, Any]]:
    """Return our lowest value over the seeds minus the peer's highest, at each of the peer's checkpoints.

    Between two of our checkpoints the value is interpolated linearly, from 0 at the start, and constant after the last.
    """
    for system in NAMES:
        theirs = _of(runs, system)
        if system == "ours" or not theirs or not _of(runs, "ours"):
            continue
        for scores in zip(*(run.scores for run in theirs), strict=False):  # a seed can have fewer checkpoints
            seconds = statistics.mean(score.seconds for score in scores)
            lowest = min(value_at(run, metric, seconds) for run in _of(runs, "ours"))
            highest = max(getattr(score, metric) for score in scores)
            yield {"system": system, "seconds": seconds, "lead": lowest - highest}


def value_at(run: RunScores, metric: str, seconds: float) -> float:
    """Interpolate linearly between checkpoints; 0 at the start."""
    before = (0.0, 0.0)
    for score in run.scores:
        after = (score.seconds, float(getattr(score, metric)))
        if seconds <= after[0]:
            share = (seconds - before[0]) / (after[0] - before[0])
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]


def _of(runs: Sequence[RunScores], system: str) -> list[RunScores]:
    return [run for run in runs if run.system == system]


def _seeds(runs: Sequence[RunScores]) -> str:
    return "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"


def _line(system: str, runs: Sequence[RunScores], metric: str) -> Line:
    """Return mean time, and mean, lowest and highest value over the seeds, by number of the checkpoint."""
    columns = list(zip(*(run.scores for run in runs), strict=False))
    minutes = [statistics.mean(score.seconds for score in column) / 60 for column in columns]
    values = [[float(getattr(score, metric)) for score in column] for column in columns]
    return Line(
        name=f"{NAMES[system]} ({_seeds(runs)})",
        points=list(zip(minutes, map(statistics.mean, values), strict=True)),
        band=list(zip(minutes, map(min, values), map(max, values), strict=True)),
    )


def _print_table(runs: Sequence[RunScores], leads: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{'system':8}{'seed':>5}{'steps':>7}{'seconds':>9}{'AP':>8}{'AP50':>8}{'others':>8}")
    for run in runs:
        last = run.scores[-1]
        print(
            f"{run.system:8}{run.seed:5}{run.num_steps:7}{last.seconds:9.0f}{last.AP:8.3f}{last.AP50:8.3f}{run.others:8.0%}"
        )
    for system in NAMES:
        its = _of(runs, system)
        for metric in GOALS if its else ():
            values = [float(getattr(run.scores[-1], metric)) for run in its]
            spread = f"{min(values):.3f} to {max(values):.3f}"
            print(f"{system}: {metric} {statistics.mean(values):.3f} at the end ({spread}, {_seeds(its)})")
    for metric, rows in leads.items():
        for system in ("zoo", "same"):
            mine = [row for row in rows if row["system"] == system]
            if mine:
                least = min(mine, key=lambda row: float(row["lead"]))
                at = f"at {least['seconds'] / 60:.1f} minutes"
                print(f"{metric}: our worst seed minus the best of {system}, at least {least['lead']:+.3f} ({at})")
    for unsaid in sorted({each for run in runs for each in run.unsaid}):
        print(f"not supported by the peer: {unsaid}")
