"""Settings that this version understands but cannot train; they are refused by name. Imports no TensorFlow."""

from collections.abc import Iterator

from detloom.schemas.contracts.ground_truth import KEYPOINTS, MASKS
from detloom.schemas.contracts.metric_names import KEYPOINT, MASK
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import MixUp, Mosaic
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.detectors.detector import Finding
from detloom.trainer_module.detectors.families import family_of


def unsupported_settings(config: TrainEvalConfig) -> tuple[str, ...]:
    """Return a sentence, beginning with the key path, for each setting that this version cannot train."""
    findings = [
        *family_of(config.model).check_settings(),
        *_check_reading_and_eval(config),
        *_check_mixing(config),
        *_check_permutations(config),
        *_check_metrics(config),
    ]
    return tuple(
        f"{finding.path}: got {_format(finding.got)}, supported: {finding.supported}."
        for finding in findings
        if not finding.is_supported
    )


def check_trainable(config: TrainEvalConfig) -> None:
    """Raise InputError, on one line, if there are unsupported settings."""
    sentences = unsupported_settings(config)
    if sentences:
        raise InputError(f"This version cannot train the configuration. {' '.join(sentences)}")


def _format(got: object) -> str:
    """Format a value as in a run file, and a group of settings by its class."""
    if got is None or isinstance(got, bool):
        return {None: "null", True: "true", False: "false"}[got]
    if isinstance(got, str):
        return f"'{redact(got)}'"
    return f"{got}" if isinstance(got, int | float) else type(got).__name__


def _check_reading_and_eval(config: TrainEvalConfig) -> Iterator[Finding]:
    is_supported = config.train.moving_average is not None or not config.eval.use_moving_averages
    supported = "true only with train.moving_average (set that, or this to false)"
    yield Finding(is_supported, "eval.use_moving_averages", config.eval.use_moving_averages, supported)
    epochs = config.train_input.num_epochs
    yield Finding(epochs == 0, "train_input.num_epochs", epochs, "0 (without end; train.num_steps ends training)")
    epochs = config.eval_input.num_epochs
    yield Finding(epochs in (0, 1), "eval_input.num_epochs", epochs, "0 or 1 (each evaluation reads the split once)")


def _check_mixing(config: TrainEvalConfig) -> Iterator[Finding]:
    """Refuse the augmentations that move boxes, but neither masks nor keypoints, if the model is trained on those."""
    columns = family_of(config.model).ground_truth_columns
    what = [noun for column, noun in ((MASKS, "masks"), (KEYPOINTS, "keypoints")) if column in columns]
    for position, augmentation in enumerate(config.train.augmentations if what else ()):
        if isinstance(augmentation, Mosaic | MixUp):
            supported = f"all except Mosaic and MixUp, which do not move {' and '.join(what)}"
            yield Finding(False, f"train.augmentations[{position}]", augmentation, supported)


def _check_permutations(config: TrainEvalConfig) -> Iterator[Finding]:
    """Refuse an order of keypoints, after a flip or rotation, that is not one of the detector's keypoints."""
    keypoints = family_of(config.model).keypoints
    for position, augmentation in enumerate(config.train.augmentations if keypoints is not None else ()):
        assert keypoints is not None
        for field in ("keypoint_flip_permutation", "keypoint_rot_permutation"):
            order = getattr(augmentation, field, ())
            is_supported = not order or sorted(order) == list(range(len(keypoints.names)))
            path = f"train.augmentations[{position}].{field}"
            yield Finding(is_supported, path, str(list(order)), f"each of 0 to {len(keypoints.names) - 1} once")


def _check_metrics(config: TrainEvalConfig) -> Iterator[Finding]:
    """Refuse metrics of masks and keypoints that the detector does not have."""
    family = family_of(config.model)
    has_masks = MASKS in family.ground_truth_columns
    wants_masks = "coco_mask_metrics" in config.eval.metrics_set
    yield Finding(
        has_masks or not wants_masks,
        "eval.metrics_set",
        "coco_mask_metrics",
        "coco_detection_metrics; the detector has no masks",
    )
    stopping = config.train.early_stopping
    chosen = {"eval.best_metric": config.eval.best_metric}
    if stopping is not None:
        chosen["train.early_stopping.metric"] = stopping.metric
    for path, metric in chosen.items():
        yield Finding(has_masks or not metric.startswith(MASK), path, metric, "metrics of boxes; there are no masks")
        has_keypoints = family.keypoints is not None
        supported = "metrics of boxes; there are no keypoints"
        yield Finding(has_keypoints or not metric.startswith(KEYPOINT), path, metric, supported)
    names = [sigma.name for sigma in config.eval.keypoint_sigmas]
    if names:
        known = family.keypoints.names if family.keypoints is not None else ()
        supported = f"each of {', '.join(known)}" if known else "none; the detector has no keypoints"
        yield Finding(set(names) == set(known), "eval.keypoint_sigmas", ", ".join(names), supported)
