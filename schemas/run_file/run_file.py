"""The run file: all settings of one pipeline."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import FieldError, InputError, check, check_unique
from detloom.schemas.model.config import Eval, InputReader, Model, Train, TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.run_file.data import Data
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.model_card import ModelCardSettings
from detloom.schemas.run_file.nodes import NodeSettings, check_beam_options
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.push import Push
from detloom.schemas.run_file.schedule import Retrain, Schedule
from detloom.schemas.run_file.tuner import TunerSettings, search_space, shortened
from detloom.schemas.run_file.vertex import Vertex

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Place = Literal["local", "kubeflow", "vertex"]  # where a pipeline runs
CONFIG_SECTIONS = ("model", "train", "eval", "train_input", "eval_input")  # merged over the detector's values
DEFAULT_DETECTOR = "ssd_mobilenet_v2_fpnlite_320x320"


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Devices and initial weights of the training."""

    strategy: Strategy = Strategy()
    """Devices on which training runs; the environment variable DETLOOM_STRATEGY overrides this setting."""
    warm_start: Literal["none", "production"] = "none"
    """`production` starts from the model that serves now, if there is one, instead of `train.fine_tune_checkpoint`.
    Without `retrain`, every run then trains, even if nothing else has changed, because the initial weights differ."""


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """All settings of one pipeline."""

    name: str
    """Name of the pipeline in metadata and on disk: lower case letters, digits, '-', '_'."""
    data: Data
    """Labelled images."""
    checks: DataChecks = DataChecks()
    """Checks of the data before training."""
    detector: str = DEFAULT_DETECTOR
    """Source of the initial values of `model`, `train`, `eval`, `train_input` and `eval_input`: the name of a preset
    (`detloom presets`), or the path of a `pipeline.config` or a `config.json`, relative to the run file."""
    model: Model
    """Detector; keys written here override those of `detector`."""
    train: Train
    """Training; keys written here override those of `detector`."""
    eval: Eval
    """Evaluation during training; keys written here override those of `detector`."""
    train_input: InputReader
    """Reading of the train split; keys written here override those of `detector`."""
    eval_input: InputReader
    """Reading of the eval split; keys written here override those of `detector`."""
    trainer: TrainerSettings = TrainerSettings()
    """Devices and initial weights of the training."""
    tuner: TunerSettings | None = None
    """Hyperparameter search before training; null searches nothing."""
    export: Export = Export()
    """Formats of the exported model."""
    evaluator: EvaluatorSettings = EvaluatorSettings()
    """Evaluation of the exported model."""
    gates: Gates = Gates()
    """Conditions for blessing a model."""
    model_card: ModelCardSettings = ModelCardSettings()
    """Texts of the model card."""
    workspace: str = ""
    """Folder for metadata, artifacts and, without `push_to`, pushed models, relative to the run file; empty means
    detloom_runs/<name> in the current folder. `${NAME}` is read from the environment."""
    pipeline_root: str = ""
    """Address at gs:// for the artifacts of runs on this machine; empty means a folder in the workspace, which keeps
    the metadata in any case. `${NAME}` is read from the environment."""
    push_to: str = ""
    """Folder for numbered model versions, relative to the run file, or its address (gs://, s3://, az://);
    empty means <workspace>/serving. `${NAME}` is read from the environment."""
    push: Push = Push()
    """Settings for pushing models to this folder or to an endpoint."""
    beam_args: tuple[str, ...] = ()
    """Pipeline options of the nodes that use Apache Beam, such as `--direct_running_mode=multi_processing` with
    `--direct_num_workers=2`, or those of Flink or Dataflow. `nodes` can set other options for single nodes."""
    retrain: Retrain | None = None
    """Conditions for training again; null trains whenever data, settings or code have changed."""
    nodes: tuple[NodeSettings, ...] = ()
    """Resources, time limits and retries of single nodes."""
    schedule: Schedule | None = None
    """Times of automatic runs, for `detloom schedule`."""
    notifications: Notifications | None = None
    """Messages about the results of runs."""
    kubeflow: Kubeflow | None = None
    """Settings for Kubeflow Pipelines."""
    vertex: Vertex | None = None
    """Settings for Vertex AI."""

    def __post_init__(self) -> None:
        check_name(self.name)
        subjects = tuple(each.subject for each in self.evaluator.image_slices)
        for kind in ("floors", "changes"):
            for asked in getattr(self.gates, kind):
                known = not asked.slice or asked.slice.partition("=")[0] in subjects
                allowed = f"slices of evaluator.image_slices (by: {', '.join(subjects) or 'nothing'})"
                check(known, f"gates.{kind}", f"the slice {asked.slice!r}", allowed)
        check_beam_options(self.beam_args)
        self.model.check_export(self.export)
        if self.evaluator.runtime != "tensorflow":
            has_file = self.export.onnx and self.export.onnx_outputs == "detections"
            allowed = "tensorflow, unless export.onnx is true and export.onnx_outputs is detections"
            check(has_file, "evaluator.runtime", self.evaluator.runtime, allowed, "export.onnx")
        check_unique("nodes", (entry.node for entry in self.nodes))
        if self.retrain is not None:
            has_spans = "{" in self.data.path or not self.retrain.new_span
            check(has_spans, "retrain.new_span", "true", "false if data.path has no {SPAN}", "data.path")
        if self.retrain is not None and self.push.vertex is not None and not self.retrain.records:
            raise FieldError("retrain.records", "is required with push.vertex.", "push.vertex")
        if self.tuner is not None:
            _check_search(self.tuner, self.config)

    @property
    def production(self) -> str:
        """The folder or address of the models that serve; of an endpoint, `VertexEndpoint.address`."""
        return self.push.vertex.address if self.push.vertex is not None else self.push_to

    @property
    def config(self) -> TrainEvalConfig:
        return TrainEvalConfig(**{section: getattr(self, section) for section in CONFIG_SECTIONS})


def check_name(name: str) -> None:
    """Raise FieldError for a text that cannot be the name of a pipeline."""
    check(bool(_NAME.fullmatch(name)), "name", repr(name), "lower case letters, digits, '-', '_'; at most 63")


def _check_search(tuner: TunerSettings, config: TrainEvalConfig) -> None:
    """Raise FieldError for a search that would fail later; both ends of every range are checked."""
    try:
        search_space(tuner, config)
    except InputError as error:
        raise FieldError("tuner.space", str(error)) from None
    try:
        shortened(config, tuner.steps_per_trial)
    except InputError as error:
        raise FieldError("tuner.steps_per_trial", str(error)) from None
