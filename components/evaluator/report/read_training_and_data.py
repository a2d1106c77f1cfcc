"""Read outputs of earlier nodes for the report page: checks of the data, training curves."""

import json
from typing import Any

from absl import logging

from detloom.components.properties import DATASET_REPORT_FILE
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.metric_names import LEARNING_RATE, LOSS
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE

_MAX_POINTS = 200  # per curve; more cannot be distinguished on the page
_TRAIN_CURVES = (LOSS, LEARNING_RATE)
_EVAL_CURVES = ("AP", "AP50", LOSS)
Curves = dict[str, list[tuple[float, float]]]


def read_data_health(report_uri: str) -> list[tuple[str, str, str]]:
    """Return (check, sentence, verdict) of each check that ran; empty without a readable report."""
    text = _read(report_uri, DATASET_REPORT_FILE)
    try:
        checks: list[dict[str, Any]] = json.loads(text)["checks"] if text else []
        return [
            (check["title"], check["sentence"], check["status"])
            for check in checks
            if check["status"] in ("passed", "warned", "failed")
        ]
    except (ValueError, KeyError, TypeError) as error:
        logging.warning("%s: invalid report, not shown on the evaluation page (%r).", report_uri, error)
        return []


def read_training_curves(model_run_uri: str) -> Curves:
    """Return training curves as (step, value), thinned out; empty without a log.

    Names are `train loss`, `learning rate`, `eval AP` and so on.
    """
    curves: Curves = {}
    for line in _read(model_run_uri, LOG_FILE).splitlines():
        try:
            row = json.loads(line)
            kind, step = row["kind"], float(row["step"])
        except (ValueError, KeyError, TypeError):
            continue  # a killed training run may leave a truncated line
        names = _TRAIN_CURVES if kind == "train" else _EVAL_CURVES if kind == "eval" else ()
        for name in names:
            value = row.get(name)
            if isinstance(value, (int, float)) and not (kind == "eval" and value == -1):
                title = "learning rate" if name == LEARNING_RATE else f"{kind} {name}"
                curves.setdefault(title, []).append((step, float(value)))
    for name, points in curves.items():
        every = -(-len(points) // _MAX_POINTS)
        curves[name] = points[::-1][::every][::-1]  # with the last one
    return curves


def _read(folder: str, name: str) -> str:
    content = open_storage(folder).read(name)
    return "" if content is None else content.decode("utf-8", "replace")
