"""Artifact types of our own, and what becomes of a report when its node fails.

TFX's compiler for Kubeflow and Vertex AI takes `TYPE_NAME` for a schema's title, which has to look like
`namespace.Title` (`_SCHEMA_TITLE_RE` in tfx/orchestration/kubeflow/v2/compiler_utils.py).
"""

import shutil
from pathlib import Path

from absl import logging
from tfx.types.artifact import Artifact

NOTHING_FOUND = "nothing_found"  # custom property, 1 on an output that stands for none where a backend requires one


class Rejects(Artifact):
    """Quarantine of one ingestion: `rejects.jsonl` and `report.json` (names in `schemas/rejects.py`)."""

    TYPE_NAME = "detloom.Rejects"


class DatasetReport(Artifact):
    """`report.json` and `report.html` of one data set validation."""

    TYPE_NAME = "detloom.DatasetReport"


class ModelCard(Artifact):
    """The card of one model: `model_card.md`, `model_card.html` and `model_card.json`."""

    TYPE_NAME = "detloom.ModelCard"


class RetrainDecision(Artifact):
    """Whether there is reason to train: custom properties `train` (1 or 0) and `reason`; both in `decision.json`."""

    TYPE_NAME = "detloom.RetrainDecision"


class TrainingRecord(Artifact):
    """What a finished training read, in `training_record.json`; kept for the next decision at `retrain.records` too."""

    TYPE_NAME = "detloom.TrainingRecord"


class MetricsForUi(Artifact):
    """Numbers that Kubeflow Pipelines and Vertex AI show with a run: each is a float custom property."""

    TYPE_NAME = "system.Metrics"


class PageForUi(Artifact):
    """A page that they show: one HTML file in the artifact's folder."""

    TYPE_NAME = "system.HTML"


class CurvesForUi(Artifact):
    """Curves and a confusion matrix that they draw: JSON custom properties `confidenceMetrics`, `confusionMatrix`."""

    TYPE_NAME = "system.ClassificationMetrics"


class TextForUi(Artifact):
    """A text that they show: one Markdown file in the artifact's folder."""

    TYPE_NAME = "system.Markdown"


def keep_after_failure(artifact_uri: str) -> str:
    """Copy an output folder aside and return the copy: TFX's launcher deletes the outputs of a node that fails.

    The copy is `failed/<output name>/<execution id>` beside the node's outputs, where no artifact points to it. Where
    it cannot be made, the folder itself is returned: what the caller has to report matters more. An address is returned
    as it is, for no launcher deletes what is there.
    """
    if "://" in artifact_uri:
        return artifact_uri
    uri = Path(artifact_uri)
    kept = uri.parent.parent / "failed" / uri.parent.name / uri.name
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(uri, kept)
    except OSError as error:
        logging.warning("%s: cannot be kept as %s (%s)", uri, kept, error)
        return artifact_uri
    return str(kept)
