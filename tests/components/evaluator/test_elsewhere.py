"""Evaluation under the conditions of Dataflow or Flink: remote addresses only, workers in separate processes."""

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation

from detloom.components.artifact_types import CurvesForUi, MetricsForUi, PageForUi, TextForUi
from detloom.components.evaluator.component import DetectionEvaluatorExecutor
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.inference import run_inference
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate

QUICK = Gates(baseline=BaselineGate(num_resamples=100), latency=LatencyGate(num_images=3))
UI_TYPES = {"page": PageForUi, "summary": TextForUi, "metrics": MetricsForUi, "curves": CurvesForUi}


def make_artifact(kind, uri, artifact_id):
    artifact = kind()
    artifact.uri, artifact.id = uri, artifact_id
    return artifact


@pytest.mark.slow  # an evaluation from end to end
def test_the_executor_reads_and_writes_remote_addresses(
    ram_folder, copy_folder, tmp_path, write_split, five_examples, good_model_uri
):
    write_split(tmp_path / "examples", five_examples)
    examples = make_artifact(Examples, copy_folder(tmp_path / "examples", f"{ram_folder}/examples"), 1)
    examples.split_names = artifact_utils.encode_split_names(["train", "test"])
    models = [copy_folder(good_model_uri, f"{ram_folder}/{name}") for name in ("model", "baseline")]
    outputs = {
        "evaluation": [make_artifact(ModelEvaluation, f"{ram_folder}/evaluation", 8)],
        "blessing": [make_artifact(ModelBlessing, f"{ram_folder}/blessing", 9)],
        **{name: [make_artifact(kind, f"{ram_folder}/{name}", 10)] for name, kind in UI_TYPES.items()},
    }
    inputs = {
        "examples": [examples],
        "model": [make_artifact(Model, models[0], 7)],
        "baseline_model": [make_artifact(Model, models[1], 5)],
    }
    properties = EvaluatorParams(settings=EvaluatorSettings(batch_size=2, num_images=2), gates=QUICK).to_properties()
    DetectionEvaluatorExecutor().Do(inputs, outputs, {**properties, "current_component_id": "DetectionEvaluator"})
    assert outputs["blessing"][0].get_int_custom_property("blessed") in (0, 1)
    written = {name.rstrip("/") for name in tf.io.gfile.listdir(f"{ram_folder}/evaluation")}
    assert {"report.html", "metrics.json", "decision.json"} <= written
    assert ".records" not in written
    assert len(tf.io.gfile.listdir(f"{ram_folder}/blessing")) == 1


@pytest.mark.nightly
def test_separate_worker_processes_give_the_same_records(
    job_endpoint, worker_pool, tmp_path, write_split, five_examples, good_model_uri
):
    """Uses the options of a Flink cluster, with Beam's Python job service instead of Flink's, which needs Java."""

    def records(args):
        return run_inference(
            lambda: beam.Pipeline(options=PipelineOptions(args)),
            [f"{split}/*"],
            {"candidate": str(good_model_uri / "Format-Serving")},
            2,
            str(tmp_path / "work"),
        )

    split = write_split(tmp_path, five_examples)
    workers = ["--environment_type=EXTERNAL", f"--environment_config={worker_pool}", "--parallelism=2"]
    there = records(["--runner=PortableRunner", f"--job_endpoint={job_endpoint}", *workers])
    here = records(["--direct_running_mode=in_memory"])
    assert there.source_ids == here.source_ids == list("abcde")
    for found, expected in zip(there.found["candidate"], here.found["candidate"], strict=True):
        for name in ("boxes_yxyx_rel", "scores", "class_ids"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
