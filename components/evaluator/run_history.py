"""What the nodes before the evaluator left about this run: health of the data, curves of the training."""

import json
from typing import Any

import tensorflow as tf
from absl import logging

from detloom.components.dataset_validator.report import REPORT_JSON
from detloom.schemas.metric_names import LOSS
from detloom.trainer_module.training_log import LOG_FILE

_MAX_POINTS = 200  # of a curve: more cannot be told apart on a page
_TRAIN_CURVES = (LOSS, "learning_rate")
_EVAL_CURVES = ("AP", "AP50", LOSS)
Curves = dict[str, list[tuple[float, float]]]


def read_data_health(report_uri: str) -> list[tuple[str, str, str]]:
    """(check, sentence, verdict) of each check that ran; empty where there is no report that can be read."""
    text = _read(f"{report_uri}/{REPORT_JSON}")
    try:
        checks: list[dict[str, Any]] = json.loads(text)["checks"] if text else []
        return [
            (check["title"], check["sentence"], check["status"])
            for check in checks
            if check["status"] in ("passed", "warned", "failed")
        ]
    except (ValueError, KeyError, TypeError) as error:
        logging.warning("%s: cannot be shown on the evaluation's page (%r).", report_uri, error)
        return []


def read_training_curves(model_run_uri: str) -> Curves:
    """Numbers over steps as (step, value), thinned out; empty where there is no log.

    Names are `train loss`, `learning rate`, `eval AP` and so on.
    """
    curves: Curves = {}
    for line in _read(f"{model_run_uri}/{LOG_FILE}").splitlines():
        try:
            row = json.loads(line)
            kind, step = row["kind"], float(row["step"])
        except (ValueError, KeyError, TypeError):
            continue  # a killed training breaks off in the middle of a line
        names = _TRAIN_CURVES if kind == "train" else _EVAL_CURVES if kind == "eval" else ()
        for name in names:
            value = row.get(name)
            if isinstance(value, (int, float)) and not (kind == "eval" and value == -1):
                title = "learning rate" if name == "learning_rate" else f"{kind} {name}"
                curves.setdefault(title, []).append((step, float(value)))
    return {name: _thin_out(points) for name, points in curves.items()}


def _thin_out(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """About 200 of them, the last one too."""
    every = -(-len(points) // _MAX_POINTS)
    return points[::-1][::every][::-1]


def _read(path: str) -> str:
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path, "r") as file:
        text: str = file.read()
    return text
