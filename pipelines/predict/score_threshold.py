"""The score threshold that `detloom predict` and `serve` use for a model."""

import json
import math
from pathlib import Path

import click

from detloom.components.pusher.manifest import EXTRAS_FOLDER
from detloom.schemas.run_file.model_card import CARD_JSON

_DEFAULT_SCORE = 0.5
_LOW_SHARE = 0.6  # classes whose own score is below this share of the common one are named
OPTION_HELP = f"Default: the score with the best F1, from the model card of a pushed model; otherwise {_DEFAULT_SCORE}."


def recommended_score(model_dir: Path) -> float:
    """Return the score with the best F1 in the model card beside a SavedModel, 0.5 without one."""
    best, _ = _read_best_f1_scores(model_dir / EXTRAS_FOLDER / CARD_JSON)
    return _DEFAULT_SCORE if best is None else best


def choose_min_score(given: float | None, model_dir: Path) -> float:
    """Return the score threshold; print where it is from, unless --min-score was given, which wins."""
    if given is not None:
        return given
    card = model_dir / EXTRAS_FOLDER / CARD_JSON
    found, scores = _read_best_f1_scores(card)
    if found is None:
        score, source = _DEFAULT_SCORE, "the default, because the model has no model card with the best F1"
    else:
        score, source = found, f"the score with the best F1 in {card}"
    click.echo(f"Minimum score {score:g}: {source}.", err=True)
    lower = [(each, name) for name, each in scores.items() if each < _LOW_SHARE * score]
    if lower:
        shown = ", ".join(f"{name!a} {each:g}" for each, name in sorted(lower))
        click.echo(
            f"Few or no objects of some classes reach it; their own scores with the best F1: {shown}. "
            f"--min-score {min(lower)[0]:g} shows them, with more wrong detections of the other classes.",
            err=True,
        )
    return score


def _read_best_f1_scores(card: Path) -> tuple[float | None, dict[str, float]]:
    """Return the score of all classes together, None without a card that contains one, and those of the classes.

    They are rounded down to three digits.
    """
    try:
        evaluation = json.loads(card.read_bytes())["evaluation"]
        whole = _rounded(evaluation["best_f1"]["min_score"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # no card, or not one of this format
        return None, {}
    try:
        found = {str(row["name"]): _rounded(row["best_f1"]["min_score"]) for row in evaluation["per_class"]}
    except (TypeError, KeyError):  # a class without true positives has no score
        found = {}
    return whole, {name: score for name, score in found.items() if score is not None}


def _rounded(score: object) -> float | None:
    if not isinstance(score, float) or not 0 <= score <= 1:
        return None
    return math.floor(1000 * score) / 1000
