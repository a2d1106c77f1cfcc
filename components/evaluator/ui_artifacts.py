"""What the user interfaces of Kubeflow Pipelines and Vertex AI show of an evaluation, as properties of artifacts."""

import numpy as np

from detloom.components.evaluator.analysis.average_precision import measure_curve
from detloom.components.evaluator.analysis.matches import IOU_50
from detloom.components.evaluator.evaluation import Evaluation
from detloom.components.evaluator.measurements import Measurements
from detloom.schemas.metric_names import METRIC_NAMES

_MAX_POINTS = 50  # of a curve
_MAX_CLASSES = 50  # properties travel in one message of at most 4 MB, and nobody reads a thousand rows


def metric_properties(evaluation: Evaluation) -> dict[str, float]:
    """Numbers by name for a `system.Metrics` artifact; what was not measured is left out, and rare classes of many."""
    coco = evaluation.candidate.coco
    numbers = {name: coco.value_of(name) for name in METRIC_NAMES if coco.explain(name) is None}
    shown = sorted(coco.per_class, key=lambda row: -row.num_boxes)[:_MAX_CLASSES]
    numbers |= {f"AP/{row.name}": row.AP for row in shown if row.num_boxes}
    change = evaluation.comparison.ap_change
    if change is not None and change.value is not None:
        numbers["AP change"] = change.value
    latency = evaluation.candidate_costs.latency
    if latency is not None:
        numbers["median latency ms"] = latency.median_ms
    return {**numbers, "blessed": float(evaluation.decision.blessed)}


def confidence_metrics(measured: Measurements) -> list[dict[str, float]]:
    """Points of `confidenceMetrics` in a `system.ClassificationMetrics` artifact, all classes together at IoU 0.50.

    The field is made for classification: `falsePositiveRate` is here the share of wrong ones among the detections.
    """
    num_true, num_false, scores, num_truth = _pooled(measured)
    if not num_truth or not len(scores):
        return []
    rows = np.unique(np.linspace(0, len(scores) - 1, _MAX_POINTS).astype(int))
    return [
        {
            "confidenceThreshold": float(scores[row]),
            "recall": float(num_true[row] / num_truth),
            "precision": float(num_true[row] / (num_true[row] + num_false[row])),
            "falsePositiveRate": float(num_false[row] / (num_true[row] + num_false[row])),
        }
        for row in rows
    ]


def confusion_matrix(measured: Measurements) -> dict[str, object]:
    """`confusionMatrix` of a `system.ClassificationMetrics` artifact, with background; of many classes the frequent."""
    confusion = measured.confusion
    counts = np.array(confusion.counts)
    frequent = np.argsort(-counts[:-1].sum(axis=1), kind="stable")[:_MAX_CLASSES]
    shown = [*np.sort(frequent).tolist(), len(confusion.class_names)]
    names = [*confusion.class_names, "background"]
    return {
        "annotationSpecs": [{"displayName": names[k]} for k in shown],
        "rows": [{"row": list(map(float, row))} for row in counts[np.ix_(shown, shown)].tolist()],
    }


def _pooled(measured: Measurements) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Right and wrong detections let through, by descending score of all classes."""
    curves = [measure_curve(measured.matches, k, IOU_50) for k in range(measured.matches.num_classes)]
    scores = np.concatenate([np.zeros(0), *(curve.scores for curve in curves)])
    true = np.concatenate([np.zeros(0), *(np.diff(curve.num_true, prepend=0) for curve in curves)])
    false = np.concatenate([np.zeros(0), *(np.diff(curve.num_false, prepend=0) for curve in curves)])
    order = np.argsort(-scores, kind="stable")
    return np.cumsum(true[order]), np.cumsum(false[order]), scores[order], sum(curve.num_truth for curve in curves)
