"""The run file: what one pipeline reads, trains, checks and pushes."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from detloom.schemas.config import Ssd, TrainerConfig, Training
from detloom.schemas.errors import InputError
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.typed_dict import from_dict, nearest_hint
from detloom.schemas.yaml_file import read_yaml

EMBEDDED_DIGITS = "embedded:digits"  # a data path that means: compose the demo data set, then read it

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Where each split comes from: for VOC a list in ImageSets/Main, for COCO an annotation file under the data path.

    `train` is trained on, `eval` chooses the checkpoint during training, `test` is what the evaluator judges by.
    """

    train: str
    eval: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """The labelled images.

    Attributes:
        path: folder of the data set; relative to the run file, `${NAME}` is read from the environment, `{SPAN}` and
            `{VERSION}` are resolved by TFX; or "embedded:digits".
        images_dir: folder of the images under `path`; empty for the format's usual one.
        classes: class names in the order of their ids; empty takes what the data set says.
        unknown_class: what to do with a class that `classes` lacks: fail, or quarantine the box.
        max_reject_fraction: share of records that may be quarantined, and of boxes that may be refused, before the run
            fails.
        min_examples: fewest written examples in each split.
    """

    format: Literal["coco", "voc"]
    path: str
    splits: Splits
    images_dir: str = ""
    classes: tuple[str, ...] = ()
    unknown_class: Literal["fail", "reject"] = "fail"
    max_reject_fraction: float = 0.05
    min_examples: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.max_reject_fraction <= 1:
            raise InputError(f"max_reject_fraction: got {self.max_reject_fraction}, allowed: 0 to 1.")
        if self.min_examples < 1:
            raise InputError(f"min_examples: got {self.min_examples}, allowed: 1 or more.")


@dataclass(frozen=True, kw_only=True)
class MetricFloor:
    """Bless only if the metric on the test split is at least `min`."""

    metric: str
    min: float

    def __post_init__(self) -> None:
        if self.metric not in METRIC_NAMES:
            hint = nearest_hint(self.metric, METRIC_NAMES)
            raise InputError(f"metric: got {self.metric!r}, allowed: {', '.join(METRIC_NAMES)}.{hint}")
        if not 0 <= self.min <= 1:
            raise InputError(f"min of {self.metric}: got {self.min}, allowed: 0 to 1 (not percent).")


@dataclass(frozen=True, kw_only=True)
class Gates:
    """When a model is blessed: all floors hold, and AP is at least the baseline's plus `min_ap_change`."""

    floors: tuple[MetricFloor, ...] = ()
    min_ap_change: float = 0.0

    def __post_init__(self) -> None:
        if not -1 <= self.min_ap_change <= 1:
            raise InputError(f"min_ap_change: got {self.min_ap_change}, allowed: -1 to 1 (not percent).")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`batch_size` pictures go through the exported model at a time; `num_pictures` are drawn on the report page."""

    batch_size: int = 8
    num_pictures: int = 12

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_pictures < 0:
            raise InputError("batch_size: 1 or more; num_pictures: 0 or more.")


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """One pipeline.

    Attributes:
        name: of the pipeline, in metadata and on disk: lower case letters, digits, '-', '_'.
        workspace: folder for metadata, artifacts and, unless `push_to` says otherwise, pushed models; empty means
            detloom_runs/<name> under the current folder. Relative to the run file, `${NAME}` as in `data.path`.
        push_to: folder that receives numbered model versions; empty means <workspace>/serving.
    """

    name: str
    data: Data
    training: Training
    detector: Ssd = Ssd()
    evaluation: Evaluation = Evaluation()
    gates: Gates = Gates()
    workspace: str = ""
    push_to: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"name: got {self.name!r}, allowed: lower case letters, digits, '-', '_'; at most 63.")

    @property
    def trainer_config(self) -> TrainerConfig:
        return TrainerConfig(detector=self.detector, training=self.training)


def read_run_file(path: Path, workspace: Path | None = None) -> RunFile:
    """Read and check a run file; its paths come back absolute.

    Args:
        workspace: used instead of the file's own.

    Raises:
        InputError: with file, line, key, what was found and what is allowed.
    """
    data, locate = read_yaml(path)
    run = from_dict(RunFile, data, locate=locate)
    folder = path.resolve().parent

    def resolve(value: str, key: str) -> str:
        return str((folder / _expand(value, f"{locate(tuple(key.split('.')))}: {key}")).absolute())

    if workspace is None:
        workspace = Path(resolve(run.workspace, "workspace") if run.workspace else f"detloom_runs/{run.name}")
    workspace = workspace.absolute()
    return replace(
        run,
        data=run.data
        if run.data.path == EMBEDDED_DIGITS
        else replace(run.data, path=resolve(run.data.path, "data.path")),
        workspace=str(workspace),
        push_to=resolve(run.push_to, "push_to") if run.push_to else str(workspace / "serving"),
    )


def _expand(value: str, where: str) -> str:
    def from_environment(match: re.Match[str]) -> str:
        name = match.group(1)
        if not os.environ.get(name):
            raise InputError(f"{where}: the environment variable {name} is not set; set it, or write the path itself.")
        return os.environ[name]

    return os.path.expanduser(_VARIABLE.sub(from_environment, value))
