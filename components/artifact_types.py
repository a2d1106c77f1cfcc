"""TFX artifact types of this package, and functions of artifacts that several components use.

TFX's compiler for Kubeflow and Vertex AI uses `TYPE_NAME` as a schema title, which must have the form
`namespace.Title` (`_SCHEMA_TITLE_RE` in tfx/orchestration/kubeflow/v2/compiler_utils.py).
"""

import shutil
from pathlib import Path
from typing import TypeAlias

from absl import logging
from tfx.types.artifact import Artifact
from tfx.utils import path_utils

Artifacts: TypeAlias = dict[str, list[Artifact]]
"""The inputs or the outputs of a node, by key."""


class Rejects(Artifact):
    """Rejected records of one ingestion run; `schemas/contracts/rejects.py` names the files."""

    TYPE_NAME = "detloom.Rejects"


class DatasetReport(Artifact):
    """Report of one data set validation: `report.json` and `report.html`."""

    TYPE_NAME = "detloom.DatasetReport"


class ModelCard(Artifact):
    """Card of one model: `model_card.md`, `model_card.html` and `model_card.json`."""

    TYPE_NAME = "detloom.ModelCard"


class RetrainDecision(Artifact):
    """Decision to train or not: custom properties `train` (1 or 0) and `reason`; `decision.json` holds both."""

    TYPE_NAME = "detloom.RetrainDecision"


class TrainingRecord(Artifact):
    """Inputs of a finished training run, in `training_record.json`.

    A copy at `retrain.records` is kept for the next retraining decision.
    """

    TYPE_NAME = "detloom.TrainingRecord"


class MetricsForUi(Artifact):
    """Metrics that Kubeflow Pipelines and Vertex AI show with a run: one float custom property each."""

    TYPE_NAME = "system.Metrics"


class PageForUi(Artifact):
    """A page that Kubeflow Pipelines and Vertex AI show: one HTML file in the artifact's folder."""

    TYPE_NAME = "system.HTML"


class CurvesForUi(Artifact):
    """Curves and a confusion matrix that Kubeflow Pipelines and Vertex AI draw.

    They are the JSON custom properties `confidenceMetrics` and `confusionMatrix`.
    """

    TYPE_NAME = "system.ClassificationMetrics"


class TextForUi(Artifact):
    """A text that Kubeflow Pipelines and Vertex AI show: one Markdown file in the artifact's folder."""

    TYPE_NAME = "system.Markdown"


def keep_after_failure(artifact_uri: str) -> str:
    """Copy an output folder and return the path of the copy, because TFX deletes the outputs of a failed node.

    The copy is `failed/<output name>/<execution id>` beside the node's outputs; no artifact points to it. If copying
    fails, return the folder itself, so that the caller's own error is not hidden. Return a URL unchanged: no launcher
    deletes remote outputs.
    """
    if "://" in artifact_uri:
        return artifact_uri
    uri = Path(artifact_uri)
    kept = uri.parent.parent / "failed" / uri.parent.name / uri.name
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(uri, kept)
    except OSError as error:
        logging.warning("%s: cannot be copied to %s (%s)", uri, kept, error)
        return artifact_uri
    return str(kept)


def saved_model_dir(model: Artifact) -> str:
    """Return the folder of the SavedModel in a model artifact, or its address."""
    return str(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model)))
