"""The run file: what one pipeline reads, trains, checks and pushes."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.beam_config import Beam
from detloom.schemas.checks import check
from detloom.schemas.config import Eval, InputReader, Model, Train, TrainEvalConfig
from detloom.schemas.data_checks import DataChecks
from detloom.schemas.data_config import Data
from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.export_config import Export, check_export
from detloom.schemas.gates_config import Gates
from detloom.schemas.hyperparameters import search_space, shortened
from detloom.schemas.kubeflow_config import Kubeflow
from detloom.schemas.model_card_config import ModelCardConfig
from detloom.schemas.node_config import NodeSettings, check_nodes
from detloom.schemas.notifications_config import Notifications
from detloom.schemas.push_config import Push
from detloom.schemas.redact import is_secret, redact
from detloom.schemas.retrain_config import Retrain
from detloom.schemas.schedule_config import Schedule
from detloom.schemas.strategy_config import Strategy
from detloom.schemas.tuner_config import Tuner
from detloom.schemas.vertex_config import Vertex

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Place = Literal["local", "kubeflow", "vertex"]  # where a pipeline runs
CONFIG_SECTIONS = ("model", "train", "eval", "train_input", "eval_input")  # laid over the detector's own
DEFAULT_DETECTOR = "ssd_mobilenet_v2_fpnlite_320x320"


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Where training runs and what it starts from."""

    strategy: Strategy = Strategy()
    """On which devices; the environment variable DETLOOM_STRATEGY overrules it."""
    warm_start: Literal["none", "latest_blessed"] = "none"
    """Start from the latest blessed model of this pipeline instead of `train.fine_tune_checkpoint`, as soon as there is
    one. Every run then trains, unchanged or not: there is another model to start from."""


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What one pipeline reads, trains, checks and pushes."""

    name: str
    """Of the pipeline, in metadata and on disk: lower case letters, digits, '-', '_'."""
    data: Data
    """The labelled images."""
    checks: DataChecks = DataChecks()
    """What the data must be like before anything is trained."""
    detector: str = DEFAULT_DETECTOR
    """What `model`, `train`, `eval`, `train_input` and `eval_input` start from: a preset's name (`detloom presets`), or
    the path of a `pipeline.config`, relative to the run file."""
    model: Model
    """The detector; keys written here replace those of `detector`."""
    train: Train
    """Its training; keys written here replace those of `detector`."""
    eval: Eval
    """Its evaluation during training; keys written here replace those of `detector`."""
    train_input: InputReader
    """Reading of the training data; keys written here replace those of `detector`."""
    eval_input: InputReader
    """Reading of the eval split; keys written here replace those of `detector`."""
    trainer: Trainer = Trainer()
    """Where training runs and what it starts from."""
    tuner: Tuner | None = None
    """A search for hyperparameters before training; null searches none."""
    export: Export = Export()
    """What is written of the trained model."""
    evaluator: Evaluator = Evaluator()
    """Evaluation of the exported model."""
    gates: Gates = Gates()
    """When a model is blessed."""
    model_card: ModelCardConfig = ModelCardConfig()
    """What the model card says beside the numbers."""
    workspace: str = ""
    """Folder for metadata, artifacts and, unless `push_to` says otherwise, pushed models, relative to the run file;
    empty means detloom_runs/<name> under the current folder. `${NAME}` is read from the environment."""
    push_to: str = ""
    """Folder that receives numbered model versions, relative to the run file, or the address of one (gs://, s3://,
    hdfs://); empty means <workspace>/serving. `${NAME}` is read from the environment."""
    push: Push = Push()
    """How models are pushed there, or to an endpoint."""
    beam_args: tuple[str, ...] = ()
    """How the nodes that use Apache Beam run: its pipeline options, such as `--direct_running_mode=multi_processing`
    with `--direct_num_workers=2`, or those of another runner."""
    beam: Beam | None = None
    """Give the work of some of these nodes to Dataflow or Flink."""
    retrain: Retrain | None = None
    """Train only when there is reason to; null trains whenever data, settings or code have changed."""
    nodes: tuple[NodeSettings, ...] = ()
    """What single nodes may use, how long they may take, how often they are tried again."""
    schedule: Schedule | None = None
    """When the pipeline runs by itself: for `detloom schedule`."""
    notifications: Notifications | None = None
    """Who is told what became of a run."""
    kubeflow: Kubeflow | None = None
    """How it runs on Kubeflow Pipelines."""
    vertex: Vertex | None = None
    """How it runs on Vertex AI."""

    def __post_init__(self) -> None:
        allowed = "lower case letters, digits, '-', '_'; at most 63"
        check(bool(_NAME.fullmatch(self.name)), "name", repr(self.name), allowed)
        subjects = tuple(each.subject for each in self.evaluator.image_slices)
        for kind in ("floors", "changes"):
            for asked in getattr(self.gates, kind):
                known = not asked.slice or asked.slice.partition("=")[0] in subjects
                allowed = f"slices of evaluator.image_slices, which are by {', '.join(subjects) or 'nothing'}"
                check(known, f"gates.{kind}", f"the slice {asked.slice!r}", allowed)
        for argument in self.beam_args:
            option = argument.partition("=")[0]
            allowed = "options without secrets, which Beam's clients find in the environment"
            check(not is_secret(option), "beam_args", redact(option), allowed)
        check_export(self.export, self.model)
        check_nodes(self.nodes)
        if self.retrain is not None:
            has_spans = "{" in self.data.path or not self.retrain.new_span
            check(has_spans, "retrain.new_span", "true", "false where data.path has no {SPAN}", "data.path")
        if self.retrain is not None and self.push.vertex is not None:
            check(bool(self.retrain.records), "retrain.records", "nothing", "a folder, with push.vertex", "push.vertex")
        if self.tuner is not None:
            _check_search(self.tuner, self.config)

    @property
    def config(self) -> TrainEvalConfig:
        return TrainEvalConfig(**{section: getattr(self, section) for section in CONFIG_SECTIONS})


def _check_search(tuner: Tuner, config: TrainEvalConfig) -> None:
    """Raise FieldError for a search that would fail after hours: every end of every range is tried."""
    try:
        search_space(tuner, config)
    except InputError as error:
        raise FieldError("tuner.space", str(error)) from None
    try:
        shortened(config, tuner.steps_per_trial)
    except InputError as error:
        raise FieldError("tuner.steps_per_trial", str(error)) from None
