"""The configuration of a detector and its training, as one frozen tree.

TFX receives its canonical JSON, so that caching notices every change. The tree is built from a preset (`presets.py`),
a `pipeline.config` of the Object Detection API (`pipeline_config.py`) or a run file (`run_file.py`), with overrides
(`overrides.py`).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.contracts.metric_names import check_metric
from detloom.schemas.errors import (
    FieldError,
    InputError,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    Ranged,
    Share,
    check,
    check_fields,
)
from detloom.schemas.model.augmentations import Augmentation
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.checkpoint_address import is_web_address, parse_archive_address
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.optimizers import GradientClipping, MovingAverage, Optimizer
from detloom.schemas.reading.typed_dict import to_canonical_json

FineTuneMode = Literal["classification", "detection", "full", "all_but_classes", "auto"]
Precision = Literal["float32", "bfloat16", "float16", "bfloat16_on_tpu"]
Model = Ssd | CenterNet | FasterRcnn

IMAGENET = "imagenet"  # replaces the path of a checkpoint: ImageNet weights of the backbone
_MIN_STEPS_BETWEEN, _NUM_EVALUATIONS = 500, 20  # evaluations, unless `eval.evaluate_every` is set
PLACEHOLDER = "PATH_TO_BE_CONFIGURED"  # placeholder for the user's paths in the detection zoo's files


@dataclass(frozen=True, kw_only=True)
class NonFinite(Ranged):
    """Reaction to a loss or a gradient that is NaN or infinite.

    The update of that step is never applied, and the run restores its last good checkpoint.
    """

    action: Literal["skip_batch", "lower_rate", "stop"] = "skip_batch"
    """`skip_batch` continues without the batch, `lower_rate` continues with a lower learning rate, `stop` ends the run
    with an error."""
    rate_factor: Annotated[float, "between 0 and 1"] = 0.5
    """Factor of the learning rate at each occurrence, with `lower_rate`."""
    max_times: NotNegativeInt = 5
    """Number of occurrences after which the next one ends the run with an error."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Ranged):
    """Stop when a metric of the eval split no longer improves."""

    metric: str = "AP"
    """A COCO metric (`AP`, `AP50`, ...; `mask_AP`, `keypoint_AP`, ...), the AP of a class as `AP/<class name>`, or
    `loss` (lower is better)."""
    patience: PositiveInt = 5
    """Number of evaluations without improvement after which training stops."""
    min_delta: NotNegative = 0.0
    """Smallest change that counts as an improvement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric("metric", self.metric)


@dataclass(frozen=True, kw_only=True)
class Monitoring(Ranged):
    """Data recorded during training, in addition to losses, learning rate and speed."""

    gradient_norms: bool = False
    """Record the norm of each variable's gradient."""
    histograms: bool = False
    """Record histograms of the weights at each evaluation."""
    num_images: NotNegativeInt = 4
    """Number of augmented input images to show at the start, and of images with ground truth and detections to show at
    each evaluation."""
    profile_first_step: NotNegativeInt = 0
    """First step recorded by TensorFlow's profiler."""
    profile_num_steps: NotNegativeInt = 0
    """Number of steps recorded by the profiler; 0 turns it off."""


@dataclass(frozen=True, kw_only=True)
class Train(Ranged):
    """Training of the detector."""

    num_steps: PositiveInt
    """Total number of training steps; one step covers all replicas."""
    optimizer: Optimizer
    """Optimizer and learning rate."""
    batch_size: PositiveInt = 32
    """Number of images per step, over all replicas."""
    gradient_accumulation_steps: PositiveInt = 1
    """Number of parts into which a replica splits its images of a step; they are processed in sequence to save
    memory."""
    learning_rate_batch_size: PositiveInt | None = None
    """Batch size for which the learning rate was written, if it differs from `batch_size`; a warning then suggests the
    scaled rate."""
    scale_learning_rate: bool = False
    """Scale the rate from `learning_rate_batch_size` to `batch_size` instead of warning."""
    augmentations: tuple[Augmentation, ...] = ()
    """Augmentations of training images, in order."""
    last_steps_without_mixing: NotNegativeInt = 0
    """Number of final steps without `Mosaic` and `MixUp`."""
    gradient_clipping: GradientClipping | None = None
    """Clipping of the gradients; null turns it off."""
    moving_average: MovingAverage | None = None
    """Moving average of the weights; null keeps none. `eval.use_moving_averages` decides whether it is used."""
    add_regularization_loss: bool = True
    """Add the penalties of `conv_hyperparams.regularizer` to the loss."""
    fine_tune_checkpoint: str = ""
    """Initial weights: a checkpoint (path without suffix), a model's folder, a Keras weights file, for
    EfficientNet-Lite a PyTorch file (a path in a run file is relative to it, one of `--set` to the current folder), the
    address of an archive with a checkpoint (`https://.../NAME.tar.gz`, with `#sha256=...` to fix its content), which
    the Trainer downloads once, or `imagenet` for ImageNet weights: those that are installed for EfficientNet-Lite0 to
    Lite2, for others those that keras.applications downloads. Empty starts from random weights."""
    fine_tune_checkpoint_type: FineTuneMode = "auto"
    """Part to restore: `classification` the backbone, `detection` a detector without its heads, `full` a whole
    detector, `all_but_classes` a detector without its last class layer. `auto` chooses by the contents of the
    checkpoint and its number of classes."""
    fine_tune_include: tuple[str, ...] = ()
    """Regular expressions; restore only variables whose path contains a match. Empty restores all."""
    fine_tune_exclude: tuple[str, ...] = ()
    """Regular expressions; do not restore variables whose path contains a match."""
    fine_tune_skip_mismatch: bool = False
    """Do not restore variables whose stored shape differs, instead of rejecting the checkpoint."""
    fine_tune_min_restored_share: Share = 0.9
    """Smallest share of each part's parameters that the checkpoint must contain; otherwise it is rejected."""
    update_trainable_variables: tuple[str, ...] = ()
    """Regular expressions; train only variables whose name contains a match. Empty trains all."""
    freeze_variables: tuple[str, ...] = ()
    """Regular expressions; do not train variables whose name contains a match."""
    bias_grad_multiplier: NotNegative = 1.0
    """Factor of the gradients of biases."""
    precision: Precision = "float32"
    """Number format of the network's computations; weights, losses and updates are always float32. float16 scales the
    loss. `bfloat16_on_tpu` is the reference's `use_bfloat16`: bfloat16 on a TPU, float32 on other devices."""
    nonfinite: NonFinite = NonFinite()
    """Reaction to NaN and infinity."""
    checkpoint_every_n: PositiveInt = 1000
    """Number of steps between two checkpoints; each evaluation writes one too, and so do ten minutes without any."""
    max_to_keep: PositiveInt = 3
    """Number of newest checkpoints to keep."""
    keep_checkpoint_every_n_hours: Positive = 10_000.0
    """Keep one checkpoint permanently for each period of this length."""
    early_stopping: EarlyStopping | None = None
    """Condition for stopping before `num_steps`; null never stops early."""
    monitoring: Monitoring = Monitoring()
    """Data recorded during training."""
    steps_per_call: PositiveInt = 20
    """Number of steps per call from the host; more reduce the overhead of the host."""
    jit_compile: Literal["auto", True, False] = "auto"
    """Compile each step with XLA. `auto` compiles on TPUs only, where it is always done: on a CPU, steps take longer
    and compilation minutes, with a mask head of the type `hourglass100` more than 15; GPUs were not measured."""
    seed: int = 0
    """Random seed of initial weights, shuffling and augmentation."""
    deterministic: bool = False
    """Let TensorFlow use only operations with bit-identical results; slower on accelerators."""
    debug: bool = False
    """Run eagerly and deterministically: slow, but errors name the line of code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.gradient_accumulation_steps
        divides = self.batch_size % parts == 0
        check(divides, "gradient_accumulation_steps", parts, f"a divisor of batch_size ({self.batch_size})")
        for field in ("fine_tune_include", "fine_tune_exclude", "update_trainable_variables", "freeze_variables"):
            for pattern in getattr(self, field):
                check(bool(pattern), field, "''", "a pattern that is not empty, because '' matches everything")
                _check_pattern(field, pattern)
        check(self.num_steps < 2**31, "num_steps", self.num_steps, "fewer than 2**31")
        _check_address(self.fine_tune_checkpoint)
        check(0 <= self.seed < 2**32, "seed", self.seed, "0 up to 2**32")


def _check_address(checkpoint: str) -> None:
    if is_web_address(checkpoint):
        try:
            parse_archive_address(checkpoint)
        except InputError as error:
            raise FieldError("fine_tune_checkpoint", str(error)) from None


def _check_pattern(field: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise FieldError(field, f"{pattern!r} is not a regular expression ({error}).") from None


@dataclass(frozen=True, kw_only=True)
class KeypointSigma:
    """Standard deviation of the labels of one keypoint, for the object keypoint similarity."""

    name: str
    """Name of the keypoint."""
    sigma: float
    """Standard deviation over the square root of the object's area; small for points that people label precisely."""

    def __post_init__(self) -> None:
        check(bool(self.name), "name", "nothing", "a name")
        check_fields(self, "above 0", "sigma")


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Evaluation of the detector during training."""

    batch_size: int = 1
    """Number of images per batch."""
    use_moving_averages: bool = False
    """Evaluate and export the moving average of the weights instead of the weights."""
    metrics_set: tuple[Literal["coco_detection_metrics", "coco_mask_metrics"], ...] = ("coco_detection_metrics",)
    """Metrics to compute. Those of boxes are always computed, and those of masks and keypoints if the detector has
    them."""
    keypoint_sigmas: tuple[KeypointSigma, ...] = ()
    """Tolerances of the keypoint metrics, of each keypoint; empty uses COCO's for COCO's names of persons' keypoints,
    and 0.05 for all others."""
    evaluate_every: int | None = None
    """Number of training steps between two evaluations; the weights of the best evaluation are exported. null: a
    twentieth of `train.num_steps`, but at least 500."""
    best_metric: str = "AP"
    """Metric that selects the exported weights: a COCO metric (`AP`, `AP50`, ...; `mask_AP`, `keypoint_AP`, ...), the
    AP of a class as `AP/<class name>`, or `loss` (lower is better)."""
    keep_best: int = 1
    """Number of best evaluations whose weights and metrics are kept."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "batch_size", "evaluate_every", "keep_best")
        if not self.metrics_set:
            raise FieldError("metrics_set", "must not be empty.")
        names = [sigma.name for sigma in self.keypoint_sigmas]
        check(len(set(names)) == len(names), "keypoint_sigmas", names, "each keypoint once")
        check_metric("best_metric", self.best_metric)


@dataclass(frozen=True, kw_only=True)
class InputReader(Ranged):
    """Reading of examples. In a pipeline, the paths come from the Examples artifact instead."""

    label_map_path: str = ""
    """Label map in protobuf text format."""
    input_path: tuple[str, ...] = ()
    """File patterns of TFRecord files."""
    shuffle: bool = True
    """Read in random order."""
    num_readers: Annotated[int, "1 to 1024"] = 64  # each is an open file
    """Number of training files that are read in turn; fewer if there are not as many."""
    read_block_length: PositiveInt = 1
    """Number of successive records of a training file that are read before the next file's turn."""
    shuffle_buffer_size: Annotated[int, "1 to 1000000"] = 2048  # memory for all places is reserved at once
    """Number of encoded records in the shuffle buffer."""
    shuffle_buffer_bytes: PositiveInt = 512 * 2**20
    """Memory limit of the shuffle buffer in bytes; the buffer holds fewer records if they would exceed it."""
    num_epochs: NotNegativeInt = 0
    """Number of passes over the data; 0 repeats without end."""
    image_type: Literal["uint8", "float32"] = "uint8"
    """Type of the training images on their way to the device, which normalizes them. uint8 rounds the augmented colors
    of 0 to 255 and transfers a quarter of the bytes."""
    max_number_of_boxes: Annotated[int, "1 to 10000"] = 100
    """Number of boxes to which the ground truth of an image is padded; of more boxes, the largest are kept."""
    unknown_classes: Literal["refuse", "drop"] = "refuse"
    """Reaction to a box whose class the label map lacks: `refuse` ends with an error, `drop` leaves it out, also in
    evaluation, as the Object Detection API does. The class is that of the text, without a text that of the id; with
    `refuse`, the id also counts where only the text is unknown."""
    sample_1_of_n_examples: PositiveInt = 1
    """Read only every n-th example."""
    class_balance: Share = 0.0
    """Threshold t for repeating images of rare classes: an image whose rarest class occurs in a share f of the images
    is read sqrt(t / f) times, but at least once (arXiv:1908.03195, appendix). 0 reads every image once."""


@dataclass(frozen=True, kw_only=True)
class TrainEvalConfig:
    """The complete configuration of the Trainer, except for the data."""

    model: Model
    """The detector."""
    train: Train
    """Training of the detector."""
    eval: Eval = Eval()
    """Evaluation of the detector during training."""
    train_input: InputReader = InputReader()
    """Reading of the training data."""
    eval_input: InputReader = InputReader()
    """Reading of the data for evaluation during training. Only `sample_1_of_n_examples` has an effect: an evaluation
    reads the images in the order of the files, with all their boxes."""

    @property
    def evaluation_interval(self) -> int:
        """Number of training steps between two evaluations."""
        return self.eval.evaluate_every or max(_MIN_STEPS_BETWEEN, self.train.num_steps // _NUM_EVALUATIONS)


def content_hash(config: TrainEvalConfig) -> str:
    """Return the SHA-256 of the canonical JSON in hex; equal configurations have equal hashes."""
    return hashlib.sha256(to_canonical_json(config).encode()).hexdigest()
