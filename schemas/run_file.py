"""The run file: what one pipeline reads, trains, checks and pushes."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.config import Eval, InputReader, Model, Train, TrainEvalConfig
from detloom.schemas.data_checks import DataChecks
from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.export_config import Export, check_export
from detloom.schemas.gates_config import Gates
from detloom.schemas.hyperparameters import search_space, shortened
from detloom.schemas.load_config import lay_over, load_tree
from detloom.schemas.model_card_config import ModelCardConfig
from detloom.schemas.overrides import Located, merge
from detloom.schemas.pipeline_config import PipelineConfigReport, refusal
from detloom.schemas.push_config import REMOTE_SCHEMES, Push, is_remote
from detloom.schemas.redact import redact
from detloom.schemas.strategy_config import Strategy
from detloom.schemas.tuner_config import Tuner
from detloom.schemas.typed_dict import KeyPath, from_dict, show_value
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
class SplitByRatio:
    """Splits by a stable hash of each record: an image keeps its split whatever is added to the data."""

    train: float = 0.8
    """Share that is trained on."""
    eval: float = 0.1
    """Share that chooses the checkpoint during training."""
    test: float = 0.1
    """Share that the evaluator judges by."""
    source: str = ""
    """What is split, named as in `splits`; empty for all there is."""
    group_by: str = ""
    """Regular expression searched in the path of the image; what its first group matches (a camera, a patient) is never
    divided between splits. Empty: each image on its own."""
    stratify: bool = False
    """Keep the mix of classes alike in all splits; added data may then move images to another split."""
    seed: int = 0
    """Another one gives another division."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "train", "eval", "test")
        total = self.train + self.eval + self.test
        check(abs(total - 1) <= 1e-6, "train", f"a sum of {total:g} with eval and test", "a sum of 1", "eval")
        try:
            groups = re.compile(self.group_by).groups
        except re.error as error:
            raise FieldError("group_by", f"got {self.group_by!r}, allowed: a regular expression ({error}).") from None
        allowed = "a regular expression with a group, such as '(cam[0-9]+)_'"
        check(not self.group_by or groups > 0, "group_by", repr(self.group_by), allowed)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The labelled images."""

    format: Literal["auto", "coco", "voc", "yolo", "open_images", "kitti", "labelme", "cvat", "tfrecord", "images"] = (
        "auto"
    )
    """How labels are written; "auto" looks, and says what it saw."""
    path: str
    """Folder of the data set, relative to the run file; or "embedded:digits". `${NAME}` is read from the environment,
    `{SPAN}` and `{VERSION}` are resolved by TFX."""
    splits: Splits | None = None
    """Where each split comes from; this or `split_by_ratio`."""
    split_by_ratio: SplitByRatio | None = None
    """Divide the images, instead of `splits`."""
    num_spans: int = 1
    """How many of the latest spans are merged; more than one needs `{SPAN}` in `path`."""
    images_dir: str = ""
    """Folder of the images under `path`; empty for the format's usual one."""
    hierarchy_file: str = ""
    """Open Images: JSON of the class hierarchy under `path`; a box then counts for the ancestors of its class too."""
    classes: tuple[str, ...] = ()
    """Class names in the order of their ids; empty takes what the data set says."""
    unknown_class: Literal["fail", "reject", "leave_out"] = "fail"
    """What to do with a class that `classes` lacks: fail, quarantine the box, or leave the box out and count it."""
    masks: bool = False
    """Keep instance masks."""
    keypoints: bool = False
    """Keep keypoints."""
    exif_rotation: Literal["rotate", "reject"] = "rotate"
    """What to do with a JPEG that its EXIF data turns: turn it upright, or quarantine it."""
    decode_images: bool = False
    """Decode every image in full while ingesting, to find damage that headers do not show; the cost is printed."""
    max_pixels: int = 100_000_000
    """An image with more is quarantined."""
    max_image_bytes: int = 67_108_864
    """A file with more is quarantined."""
    max_boxes: int = 10_000
    """An image with more is quarantined."""
    max_reject_fraction: float = 0.05
    """Share of records that may be quarantined, and of boxes that may be refused, before the run fails."""
    shard_max_bytes: int = 134_217_728
    """Of the images in one shard file, about."""
    gzip: bool = False
    """Compress the shards; encoded images do not get smaller."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "max_reject_fraction")
        at_least_one = ("num_spans", "max_pixels", "max_image_bytes", "max_boxes", "shard_max_bytes")
        check_fields(self, "1 or more", *at_least_one)
        check(all(self.classes) and len(set(self.classes)) == len(self.classes), "classes", self.classes, "each once")
        is_one = (self.splits is None) != (self.split_by_ratio is None)
        got = "neither it nor split_by_ratio" if self.splits is None else "it and split_by_ratio"
        check(is_one, "splits", got, "one of the two", "split_by_ratio")
        has_span = "{SPAN" in self.path or "{YYYY}" in self.path
        check(self.num_spans == 1 or has_span, "num_spans", self.num_spans, "1 where path has no {SPAN}", "path")


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
    beam_args: tuple[str, ...] = ("--direct_running_mode=in_memory",)
    """How the nodes that use Apache Beam run: its pipeline options, such as `--direct_running_mode=multi_processing`
    with `--direct_num_workers=2`, or those of another runner."""

    def __post_init__(self) -> None:
        allowed = "lower case letters, digits, '-', '_'; at most 63"
        check(bool(_NAME.fullmatch(self.name)), "name", repr(self.name), allowed)
        subjects = tuple(each.subject for each in self.evaluator.image_slices)
        for kind in ("floors", "changes"):
            for asked in getattr(self.gates, kind):
                known = not asked.slice or asked.slice.partition("=")[0] in subjects
                allowed = f"slices of evaluator.image_slices, which are by {', '.join(subjects) or 'nothing'}"
                check(known, f"gates.{kind}", f"the slice {asked.slice!r}", allowed)
        check_export(self.export, self.model)
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

    def resolve_push_to(value: str) -> str:
        where = f"{tree.locate(('push_to',))}: push_to"
        address = _expand(value, where)
        if "://" not in address:
            return resolve(value, "push_to")
        if not is_remote(address) or "\0" in address:
            schemes = ", ".join(REMOTE_SCHEMES)
            raise InputError(f"{where}: got '{redact(value)}', allowed: a folder, or an address of {schemes}.")
        return address

    if workspace is None:
        workspace = Path(resolve(run.workspace, "workspace") if run.workspace else f"detloom_runs/{run.name}")
    workspace = workspace.absolute()
    if run.data.path != EMBEDDED_DIGITS:
        data_path = resolve(run.data.path, "data.path")
        if "{" not in data_path and not os.path.isdir(data_path):  # {SPAN} is TFX's to resolve
            where = tree.locate(("data", "path"))
            raise InputError(f"{where}: data.path: got '{redact(run.data.path)}', which is no folder.")
        run = replace(run, data=replace(run.data, path=data_path))
    if run.push.vertex is not None and run.push_to:
        where = tree.locate(("push_to",))
        raise InputError(f"{where}: push_to: got it and push.vertex, allowed: one of the two.")
    push_to = resolve_push_to(run.push_to) if run.push_to else str(workspace / "serving")
    return replace(run, workspace=str(workspace), push_to=push_to)


def _expand(value: str, where: str) -> str:
    def from_environment(match: re.Match[str]) -> str:
        name = match.group(1)
        if not os.environ.get(name):
            raise InputError(f"{where}: the environment variable {name} is not set; set it, or write the path itself.")
        return os.environ[name]

    return os.path.expanduser(_VARIABLE.sub(from_environment, value))
