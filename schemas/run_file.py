"""The run file: what one pipeline reads, trains, checks and pushes."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.config import Eval, InputReader, Train, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.load_config import lay_over, load_tree
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.model_config import Ssd
from detloom.schemas.overrides import Located, merge
from detloom.schemas.pipeline_config import PipelineConfigReport, refusal
from detloom.schemas.redact import redact
from detloom.schemas.typed_dict import KeyPath, from_dict, nearest_hint, show_value
from detloom.schemas.yaml_file import read_yaml

EMBEDDED_DIGITS = "embedded:digits"  # a data path that means: compose the demo data set, then read it

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


CONFIG_SECTIONS = ("model", "train", "eval", "train_input", "eval_input")  # laid over the detector's own
DEFAULT_DETECTOR = "ssd_mobilenet_v2_fpnlite_320x320"


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Where a split comes from: for VOC a list in ImageSets/Main, for COCO an annotation file under the data path."""

    train: str
    """What is trained on."""
    eval: str
    """What chooses the checkpoint during training."""
    test: str
    """What the evaluator judges by; training never sees it."""

    def __post_init__(self) -> None:
        for split in ("train", "eval", "test"):
            check(bool(getattr(self, split)), split, "nothing", "a name")
        for split in ("eval", "test"):
            check(getattr(self, split) != self.train, split, repr(self.train), "another split than train", "train")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The labelled images."""

    format: Literal["coco", "voc"]
    """How labels are written."""
    path: str
    """Folder of the data set, relative to the run file; or "embedded:digits". `${NAME}` is read from the environment,
    `{SPAN}` and `{VERSION}` are resolved by TFX."""
    splits: Splits
    """Where each split comes from."""
    images_dir: str = ""
    """Folder of the images under `path`; empty for the format's usual one."""
    classes: tuple[str, ...] = ()
    """Class names in the order of their ids; empty takes what the data set says."""
    unknown_class: Literal["fail", "reject"] = "fail"
    """What to do with a class that `classes` lacks: fail, or quarantine the box."""
    max_reject_fraction: float = 0.05
    """Share of records that may be quarantined, and of boxes that may be refused, before the run fails."""
    min_examples: int = 1
    """Fewest written examples in each split."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "max_reject_fraction")
        check_fields(self, "1 or more", "min_examples")
        check(all(self.classes) and len(set(self.classes)) == len(self.classes), "classes", self.classes, "each once")


@dataclass(frozen=True, kw_only=True)
class MetricFloor:
    """Bless only if the metric on the test split is at least `min`."""

    metric: str
    """One of the COCO numbers, such as AP or AP50."""
    min: float
    """Least value, 0 to 1 (not percent)."""

    def __post_init__(self) -> None:
        hint = nearest_hint(self.metric, METRIC_NAMES)
        check(self.metric in METRIC_NAMES, "metric", repr(self.metric), f"{', '.join(METRIC_NAMES)}.{hint}".rstrip("."))
        check(0 <= self.min <= 1, "min", self.min, "0 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """When a model is blessed."""

    floors: tuple[MetricFloor, ...] = ()
    """All of them must hold."""
    min_ap_change: float = 0.0
    """AP is at least the baseline's plus this."""

    def __post_init__(self) -> None:
        check(-1 <= self.min_ap_change <= 1, "min_ap_change", self.min_ap_change, "-1 to 1 (not percent)")


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """How the exported model is evaluated."""

    batch_size: int = 8
    """Pictures through the exported model at a time."""
    num_pictures: int = 12
    """Pictures with boxes on the report page."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "batch_size")
        check_fields(self, "0 or more", "num_pictures")


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What one pipeline reads, trains, checks and pushes."""

    name: str
    """Of the pipeline, in metadata and on disk: lower case letters, digits, '-', '_'."""
    data: Data
    """The labelled images."""
    detector: str = DEFAULT_DETECTOR
    """What `model`, `train`, `eval`, `train_input` and `eval_input` start from: a preset's name (`detloom presets`), or
    the path of a `pipeline.config`, relative to the run file."""
    model: Ssd
    """The detector; keys written here replace those of `detector`."""
    train: Train
    """Its training; keys written here replace those of `detector`."""
    eval: Eval
    """Its evaluation during training; keys written here replace those of `detector`."""
    train_input: InputReader
    """Reading of the training data; keys written here replace those of `detector`."""
    eval_input: InputReader
    """Reading of the eval split; keys written here replace those of `detector`."""
    evaluator: Evaluator = Evaluator()
    """Evaluation of the exported model."""
    gates: Gates = Gates()
    """When a model is blessed."""
    workspace: str = ""
    """Folder for metadata, artifacts and, unless `push_to` says otherwise, pushed models, relative to the run file;
    empty means detloom_runs/<name> under the current folder. `${NAME}` is read from the environment."""
    push_to: str = ""
    """Folder that receives numbered model versions, relative to the run file; empty means <workspace>/serving.
    `${NAME}` is read from the environment."""

    def __post_init__(self) -> None:
        allowed = "lower case letters, digits, '-', '_'; at most 63"
        check(bool(_NAME.fullmatch(self.name)), "name", repr(self.name), allowed)

    @property
    def config(self) -> TrainEvalConfig:
        return TrainEvalConfig(**{section: getattr(self, section) for section in CONFIG_SECTIONS})


def load_run_tree(
    path: Path, overrides: Sequence[Located] = (), override_text: str = ""
) -> tuple[Located, PipelineConfigReport | None]:
    """The plain tree of a run file, with its detector's sections filled in, and what became of a `pipeline.config`.

    Args:
        overrides: laid over the file, in order.
        override_text: in the format of `pipeline.config`, merged over the one that `detector` names.

    Raises:
        InputError: for a file or a detector that cannot be read.
    """
    data, locate = read_yaml(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}:1: got no mapping, allowed: keys such as name, data, detector, train.")
    file, over = Located(data, locate), merge(Located({}, lambda _: str(path)), *overrides)
    tree = merge(file, over)
    detector, where = tree.data.get("detector", DEFAULT_DETECTOR), tree.locate(("detector",))
    if not isinstance(detector, str):
        got = show_value((), detector)
        raise InputError(f"{where}: detector: got {got}, allowed: a preset's name or the path of a file.")
    try:
        config, report = load_tree(detector, path.resolve().parent, override_text=override_text)
    except InputError as error:
        raise InputError(f"{where}: detector: {error}") from None
    for layer in (file, over):
        config = lay_over(config, Located(_sections(layer.data), layer.locate))

    def locate_key(key_path: KeyPath) -> str:
        return (config if key_path and key_path[0] in CONFIG_SECTIONS else tree).locate(key_path)

    empty: dict[str, Any] = {section: {} for section in CONFIG_SECTIONS}
    return Located({**empty, **tree.data, **config.data}, locate_key), report


def build_run(tree: Located) -> RunFile:
    """The checked run file of a tree; its paths stay as they were written."""
    return from_dict(RunFile, tree.data, locate=tree.locate)


def _sections(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key in CONFIG_SECTIONS}


def read_run_file(path: Path, workspace: Path | None = None, overrides: Sequence[Located] = ()) -> RunFile:
    """Read and check a run file; its paths come back absolute.

    Args:
        workspace: used instead of the file's own.
        overrides: laid over the file in order.

    Raises:
        InputError: with file, line, key, what was found and what is allowed.
    """
    tree, report = load_run_tree(path, overrides)
    if report is not None and report.refused:
        raise refusal(report)
    return resolve_paths(build_run(tree), tree, path, workspace)


def resolve_paths(run: RunFile, tree: Located, path: Path, workspace: Path | None = None) -> RunFile:
    """The run with absolute paths, `${NAME}` read from the environment.

    Args:
        tree: that the run was built from; it knows where each path was written.
        path: of the run file, which the paths are relative to.
        workspace: used instead of the run's own.

    Raises:
        InputError: for a variable that is not set, an address instead of a folder, and data that are not there.
    """
    folder = path.resolve().parent

    def resolve(value: str, key: str) -> str:
        where = f"{tree.locate(tuple(key.split('.')))}: {key}"
        if "://" in value or "\0" in value:
            raise InputError(f"{where}: got '{redact(value)}', allowed: a folder that is mounted here.")
        return str((folder / _expand(value, where)).absolute())

    if workspace is None:
        workspace = Path(resolve(run.workspace, "workspace") if run.workspace else f"detloom_runs/{run.name}")
    workspace = workspace.absolute()
    if run.data.path != EMBEDDED_DIGITS:
        data_path = resolve(run.data.path, "data.path")
        if "{" not in data_path and not os.path.isdir(data_path):  # {SPAN} is TFX's to resolve
            where = tree.locate(("data", "path"))
            raise InputError(f"{where}: data.path: got '{redact(run.data.path)}', which is no folder.")
        run = replace(run, data=replace(run.data, path=data_path))
    push_to = resolve(run.push_to, "push_to") if run.push_to else str(workspace / "serving")
    return replace(run, workspace=str(workspace), push_to=push_to)


def _expand(value: str, where: str) -> str:
    def from_environment(match: re.Match[str]) -> str:
        name = match.group(1)
        if not os.environ.get(name):
            raise InputError(f"{where}: the environment variable {name} is not set; set it, or write the path itself.")
        return os.environ[name]

    return os.path.expanduser(_VARIABLE.sub(from_environment, value))
