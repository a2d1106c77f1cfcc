"""The score threshold that `detloom predict` and `serve` use for a model."""

import json
import math
from pathlib import Path

import click

from detloom.components.pusher.manifest import EXTRAS_FOLDER
from detloom.schemas.run_file.model_card import CARD_JSON

_DEFAULT_SCORE = 0.5
OPTION_HELP = f"Default: the score with the best F1, from the model card of a pushed model; otherwise {_DEFAULT_SCORE}."


def choose_min_score(given: float | None, model_dir: Path) -> float:
    """Return the score threshold; print where it is from, unless --min-score was given, which wins.

    Args:
        given: value of --min-score.
        model_dir: folder of the SavedModel.
    """
    if given is not None:
        return given
    card = model_dir / EXTRAS_FOLDER / CARD_JSON
    found = _read_best_f1_score(card)
    if found is None:
        score, source = _DEFAULT_SCORE, "the default, because the model has no model card with the best F1"
    else:
        score, source = found, f"the score with the best F1 in {card}"
    click.echo(f"Minimum score {score:g}: {source}.", err=True)
    return score


def _read_best_f1_score(card: Path) -> float | None:
    """Return the score, rounded down to three digits; None without a card that contains one."""
    try:
        score = json.loads(card.read_bytes())["evaluation"]["best_f1"]["min_score"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # no card, or not one of this format
        return None
    is_score = isinstance(score, float) and 0 <= score <= 1
    return math.floor(1000 * score) / 1000 if is_score else None
