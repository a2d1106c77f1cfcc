"""The configuration of a detector and its training: one frozen tree, the truth about both.

Its canonical JSON travels through TFX, so that caching sees every change. The tree is made from a preset
(`presets.py`), from a `pipeline.config` of the Object Detection API (`pipeline_config.py`) or from a run file
(`run_file.py`), with overrides (`overrides.py`).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.augmentation_config import Augmentation
from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.checks import check, check_fields
from detloom.schemas.metric_names import check_metric
from detloom.schemas.model_config import Ssd
from detloom.schemas.optimizer_config import GradientClipping, MovingAverage, Optimizer
from detloom.schemas.typed_dict import to_canonical_json

FineTuneMode = Literal["classification", "detection", "full", "all_but_classes", "auto"]
Precision = Literal["float32", "bfloat16", "float16"]
Model = Ssd | CenterNet

IMAGENET = "imagenet"  # in place of a checkpoint's path: the weights that keras.applications downloads
PLACEHOLDER = "PATH_TO_BE_CONFIGURED"  # stands in the detection zoo's files where the user's path belongs


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """What happens when a loss or a gradient becomes NaN or infinite.

    The step's update is never applied, and the run goes back to its last good checkpoint.
    """

    action: Literal["skip_batch", "lower_rate", "stop"] = "skip_batch"
    """Then leave out the batch, or train with a lower rate, or stop with an error."""
    rate_factor: float = 0.5
    """With `lower_rate`: what the learning rate is multiplied by, each time."""
    max_times: int = 5
    """Stop with an error when it has happened more often."""

    def __post_init__(self) -> None:
        check_fields(self, "between 0 and 1", "rate_factor")
        check_fields(self, "0 or more", "max_times")


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stop when a metric of the eval split no longer improves."""

    metric: str = "AP"
    """A COCO number (`AP`, `AP50`, ...), a class's AP as `AP/<class name>`, or `loss`, which has to fall."""
    patience: int = 5
    """Evaluations without improvement before training stops."""
    min_delta: float = 0.0
    """Improvements smaller than this are none."""

    def __post_init__(self) -> None:
        check_metric("metric", self.metric)
        check_fields(self, "1 or more", "patience")
        check_fields(self, "0 or more", "min_delta")


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """What is recorded while training runs, beside losses, learning rate and speed."""

    gradient_norms: bool = False
    """Record the norm of each variable's gradient too."""
    histograms: bool = False
    """Record histograms of weights at each evaluation."""
    num_pictures: int = 4
    """Pictures of augmented input at the start, and of ground truth beside detections at each evaluation."""
    profile_first_step: int = 0
    """First step that TensorFlow's profiler records."""
    profile_num_steps: int = 0
    """Steps that it records; 0 records none."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "num_pictures", "profile_first_step", "profile_num_steps")


@dataclass(frozen=True, kw_only=True)
class Train:
    """How the detector is trained."""

    num_steps: int
    """Steps of the whole training, over all replicas."""
    optimizer: Optimizer
    """Optimizer and learning rate."""
    batch_size: int = 32
    """Pictures in one step, over all replicas."""
    gradient_accumulation_steps: int = 1
    """Parts that a replica takes its pictures of a step in, one after the other, for less memory."""
    learning_rate_batch_size: int | None = None
    """Batch size that the learning rate was written for, if another: a warning then names the scaled rate."""
    scale_learning_rate: bool = False
    """Train with the rate scaled from `learning_rate_batch_size` to `batch_size` instead of warning."""
    augmentations: tuple[Augmentation, ...] = ()
    """Random changes to training pictures, in order."""
    last_steps_without_mixing: int = 0
    """In so many of the last steps no pictures are mixed with others (`Mosaic`, `MixUp`)."""
    gradient_clipping: GradientClipping | None = None
    """Limit on the gradients; None sets none."""
    moving_average: MovingAverage | None = None
    """Of the weights; None keeps none. `eval.use_moving_averages` says whether it is used."""
    add_regularization_loss: bool = True
    """Count the penalties of `conv_hyperparams.regularizer`."""
    fine_tune_checkpoint: str = ""
    """What training starts from: a checkpoint (path without ending), a model's folder, a Keras file with weights (in a
    run file, relative to it), or `imagenet` for the weights of keras.applications; empty starts from random weights."""
    fine_tune_checkpoint_type: FineTuneMode = "auto"
    """What is restored: the backbone, a detector without its heads, a whole detector, or all of it but the last class
    layer; `auto` decides by what the checkpoint holds and by its number of classes."""
    fine_tune_include: tuple[str, ...] = ()
    """Regular expressions; restore only variables in whose path one of them is found. Empty restores all."""
    fine_tune_exclude: tuple[str, ...] = ()
    """Regular expressions; leave variables in whose path one of them is found as they are initialized."""
    fine_tune_skip_mismatch: bool = False
    """Leave variables whose stored shape is another as they are initialized, instead of refusing the checkpoint."""
    fine_tune_min_restored_share: float = 0.9
    """Share of the parameters to restore that the checkpoint must have of each part; with less it is refused."""
    update_trainable_variables: tuple[str, ...] = ()
    """Regular expressions; train only variables in whose name one of them is found. Empty trains all."""
    freeze_variables: tuple[str, ...] = ()
    """Regular expressions; do not train variables in whose name one of them is found."""
    var_freeze_expr: str = ""
    """google/automl's setting: do not train variables whose name this regular expression matches from its start."""
    bias_grad_multiplier: float = 1.0
    """Factor of the gradients of biases."""
    precision: Precision = "float32"
    """What the network computes in; weights, losses and updates are float32 always. float16 scales the loss."""
    use_bfloat16: bool = False
    """Compute in bfloat16 on TPU, as the reference does; elsewhere `precision` alone counts."""
    nonfinite: NonFinite = NonFinite()
    """What happens at a NaN."""
    checkpoint_every_n: int = 1000
    """Steps between two checkpoints; there is one at each evaluation too."""
    max_to_keep: int = 3
    """Newest checkpoints that are kept."""
    keep_checkpoint_every_n_hours: float = 10_000.0
    """Keep one checkpoint of each such span for good."""
    early_stopping: EarlyStopping | None = None
    """When to stop before `num_steps`; None: never."""
    monitoring: Monitoring = Monitoring()
    """What is recorded."""
    steps_per_call: int = 20
    """Steps in one call from the host, so that it does not slow the device."""
    seed: int = 0
    """Of initial weights, shuffling and augmentation."""
    deterministic: bool = False
    """Let TensorFlow use only operations that give the same bits each time; slower on accelerators."""
    debug: bool = False
    """Run step by step without compiling, and deterministic: slow, but errors point at the line."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "num_steps", "batch_size", "learning_rate_batch_size", "steps_per_call")
        check_fields(self, "1 or more", "gradient_accumulation_steps", "checkpoint_every_n", "max_to_keep")
        check_fields(self, "0 or more", "last_steps_without_mixing")
        parts = self.gradient_accumulation_steps
        divides = self.batch_size % parts == 0
        check(divides, "gradient_accumulation_steps", parts, f"a divisor of batch_size ({self.batch_size})")
        check_fields(self, "above 0", "keep_checkpoint_every_n_hours")
        check_fields(self, "0 to 1", "fine_tune_min_restored_share")
        check_fields(self, "0 or more", "bias_grad_multiplier")
        for field in ("fine_tune_include", "fine_tune_exclude", "update_trainable_variables", "freeze_variables"):
            for pattern in getattr(self, field):
                check(bool(pattern), field, "''", "no empty pattern, which is found everywhere")
                _check_pattern(field, pattern)
        _check_pattern("var_freeze_expr", self.var_freeze_expr)
        check(self.num_steps < 2**31, "num_steps", self.num_steps, "fewer than 2**31")
        check(0 <= self.seed < 2**32, "seed", self.seed, "0 up to 2**32")


def _check_pattern(field: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        check(False, field, f"{pattern!r} ({error})", "a regular expression")


@dataclass(frozen=True, kw_only=True)
class Eval:
    """How the detector is evaluated during training."""

    batch_size: int = 1
    """Pictures through the network at a time."""
    use_moving_averages: bool = False
    """Evaluate and export the moving average of the weights instead of the weights."""
    metrics_set: tuple[Literal["coco_detection_metrics"], ...] = ("coco_detection_metrics",)
    """Which metrics are computed."""
    evaluate_every: int = 500
    """Training steps between two evaluations; the best one's weights are exported."""
    best_metric: str = "AP"
    """The number by which the exported weights are chosen: a COCO number (`AP`, `AP50`, ...), a class's AP as
    `AP/<class name>`, or `loss`, of which the lowest is best."""
    keep_best: int = 1
    """How many of the best evaluations' weights are kept, with their numbers."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "batch_size", "evaluate_every", "keep_best")
        check(bool(self.metrics_set), "metrics_set", "nothing", "at least one")
        check_metric("best_metric", self.best_metric)


@dataclass(frozen=True, kw_only=True)
class InputReader:
    """How examples are read. In a pipeline the paths come from the data's artifact instead."""

    label_map_path: str = ""
    """Label map in protobuf text format."""
    input_path: tuple[str, ...] = ()
    """Patterns of TFRecord files."""
    shuffle: bool = True
    """Read in random order."""
    shuffle_buffer_size: int = 2048
    """Encoded records among which the next one is drawn."""
    shuffle_buffer_bytes: int = 512 * 2**20
    """The same in bytes: fewer records are drawn among where they would take more memory."""
    num_epochs: int = 0
    """How often the data are read; 0 means without end."""
    max_number_of_boxes: int = 100
    """Boxes that a picture's ground truth is padded to; of more, the largest are kept."""
    sample_1_of_n_examples: int = 1
    """Read only every n-th example."""
    class_balance: float = 0.0
    """Repeat pictures of rare classes: one whose rarest class is in a share f of the pictures is read sqrt(this / f)
    times, where that is more than once (arXiv:1908.03195, appendix). 0 reads every picture once."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "shuffle_buffer_size", "max_number_of_boxes", "sample_1_of_n_examples")
        check_fields(self, "1 or more", "shuffle_buffer_bytes")
        check_fields(self, "0 or more", "num_epochs")
        check_fields(self, "0 to 1", "class_balance")


@dataclass(frozen=True, kw_only=True)
class TrainEvalConfig:
    """All that the Trainer needs to know beside the data."""

    model: Model
    """The detector."""
    train: Train
    """Its training."""
    eval: Eval = Eval()
    """Its evaluation during training."""
    train_input: InputReader = InputReader()
    """Reading of the training data."""
    eval_input: InputReader = InputReader()
    """Reading of the data that training is evaluated on."""


def content_hash(config: TrainEvalConfig) -> str:
    """SHA-256 of the canonical JSON, as hex: equal for equal configurations, whatever file they came from."""
    return hashlib.sha256(to_canonical_json(config).encode()).hexdigest()
