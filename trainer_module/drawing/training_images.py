"""Images for the training log: the augmented input, and detections beside ground truth."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.arrays import Array, Uint8Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import Model, TrainEvalConfig
from detloom.trainer_module.data.augmentations.mixing import mixings_of
from detloom.trainer_module.data.input_pipeline import build_train_dataset
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.drawing.draw import draw_objects, draw_rows

DetectBatch = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
MAX_IMAGES = 16  # per kind; upper limit for the configured number
_MIN_SIDE_PX, _MAX_SIDE_PX = 240, 480  # limits of the longer side: legible labels, small files
_MIN_SCORE, _MAX_DRAWN = 0.2, 20  # defaults of the Object Detection API's draw_side_by_side_evaluation_image
_GAP_PX, _HEADING_PX, _HEADING_FONT_PX = 4, 20, 14
_SHUFFLED_RECORDS = 64  # sample images for display from this many records instead of a full buffer


def draw_augmented(
    config: TrainEvalConfig, label_map: LabelMap, files: Sequence[str], num_images: int, *, step: int = 0
) -> list[Uint8Array]:
    """Draw training images from `step` on as the network sees them, with their boxes.

    They are read again, and sampled from fewer records than training uses.
    """
    count = min(num_images, MAX_IMAGES)
    if not count:
        return []
    reader = config.train_input
    few = replace(reader, shuffle_buffer_size=min(reader.shuffle_buffer_size, _SHUFFLED_RECORDS))
    # The batch size affects an image only where images of a batch are mixed.
    batch_size = config.train.batch_size if mixings_of(config.train.augmentations) else count
    dataset = build_train_dataset(
        replace(config, train_input=few), label_map, files, batch_size=batch_size, start_step=step
    )
    drawn: list[Uint8Array] = []
    for batch in dataset:
        drawn += draw_train_batch(batch, label_map, count - len(drawn))
        if len(drawn) == count:
            break
    return drawn


def draw_train_batch(batch: dict[str, tf.Tensor], label_map: LabelMap, num_images: int) -> list[Uint8Array]:
    """Draw the first images of a batch of `build_train_dataset`, with colors 0 to 255 and with padding.

    The label of a box shows its weight unless that is 1.
    """
    drawn = []
    for i in range(min(num_images, int(batch["image"].shape[0]))):
        row = {name: np.asarray(value[i]) for name, value in batch.items()}
        weights = row.get(truth.WEIGHTS, np.ones(row[truth.CLASSES].shape))
        notes = ["" if weight == 1 else f" x{weight:.2g}" for weight in weights]
        drawn.append(draw_truth(fit_size(as_pixels(row[truth.IMAGE])), row, label_map, notes))
    return drawn


def draw_truth(image_rgb: Uint8Array, row: dict[str, Array], label_map: LabelMap, notes: Sequence[str]) -> Uint8Array:
    """Draw the objects of one image's ground truth.

    Args:
        notes: follow the class names of the labels; one for each row of the ground truth.
    """
    is_box = row[truth.CLASSES] >= 0
    class_ids = np.array(label_map.class_ids)[row[truth.CLASSES][is_box]]
    labels = [
        label_map.name_of(int(class_id)) + note
        for class_id, note in zip(class_ids, itertools.compress(notes, is_box), strict=True)
    ]
    columns = {"masks_NHW": truth.MASKS, "keypoints_yx_rel_NP2": truth.KEYPOINTS}
    shapes = {name: row[column][is_box] for name, column in columns.items() if column in row}
    return np.asarray(draw_objects(image_rgb, row[truth.BOXES][is_box], class_ids, labels, **shapes))


def crowd_notes(row: dict[str, Array]) -> list[str]:
    """Return the notes that mark the crowds of one image's ground truth."""
    return [" (crowd)" if is_crowd else "" for is_crowd in row[truth.CROWD]]


def draw_beside_truth(
    detect: DetectBatch, dataset: tf.data.Dataset, model: Model, label_map: LabelMap, num_images: int
) -> list[Uint8Array]:
    """Draw the first images of a split: ground truth on the left, the highest-scoring detections on the right.

    Args:
        detect: see `SplitEvaluator.detect_batch`.
        dataset: result of `build_eval_dataset`; only the required batches are read.
    """
    drawn: list[Uint8Array] = []
    count = min(num_images, MAX_IMAGES)
    for batch in dataset if count else ():
        outputs = {name: value.numpy() for name, value in detect(batch).items()}
        for i in range(min(count - len(drawn), len(batch["image"]))):
            row = {name: np.asarray(value[i]) for name, value in batch.items()}
            found = {name: value[i] for name, value in outputs.items()}
            drawn.append(_side_by_side(row, found, model, label_map))
        if len(drawn) >= count:
            break
    return drawn


def _side_by_side(row: dict[str, Array], found: dict[str, Array], model: Model, label_map: LabelMap) -> Uint8Array:
    rows, columns = row["true_hw"]
    image = fit_size(restore_colors(row["image"][:rows, :columns], model), aspect_hw=tuple(row["image_hw"]))
    if truth.MASKS in row:
        row = {**row, truth.MASKS: row[truth.MASKS][:, :rows, :columns]}
    shown_truth = draw_truth(image, row, label_map, crowd_notes(row))
    num_sure = int(np.count_nonzero(found[names.SCORES][: int(found[names.NUM_DETECTIONS])] >= _MIN_SCORE))
    sure = {name: found[name][: min(num_sure, _MAX_DRAWN)] for name in found if name != names.NUM_DETECTIONS}
    found_names = [label_map.name_of(int(class_id)) for class_id in sure[names.CLASSES]]
    detections = draw_rows(image, sure, found_names)
    of_more = f", top of {num_sure}" if num_sure > len(found_names) else ""
    num_true = np.count_nonzero(row[truth.CLASSES] >= 0)
    headings = (f"ground truth: {num_true}", f"score >= {_MIN_SCORE}: {len(found_names)}{of_more}")
    panels = [
        _under_heading(np.asarray(panel), text) for panel, text in zip((shown_truth, detections), headings, strict=True)
    ]
    return arrange(panels, columns=2)


def restore_colors(image_HW3: Array, model: Model) -> Uint8Array:
    """Invert the normalization and return colors 0 to 255; non-finite values become black.

    Normalization is an affine map of the three channels, so its values at 0 and at the unit colors define it.
    """
    normalize = family_of(model).preprocessing.normalize
    zero = normalize(tf.zeros([3])).numpy().astype(np.float64)
    units = np.stack([normalize(tf.one_hot(i, 3)).numpy().astype(np.float64) - zero for i in range(3)])
    return as_pixels((np.asarray(image_HW3, np.float64) - zero) @ np.linalg.inv(units))


def as_pixels(colors: Array) -> Uint8Array:
    """Round and clip colors; NaN becomes black."""
    return np.rint(np.clip(np.nan_to_num(colors, nan=0.0), 0, 255)).astype(np.uint8)


def arrange(images_HW3: Sequence[Uint8Array], *, columns: int) -> Uint8Array:
    """Arrange images in rows on one white image; they may differ in size."""
    height, width = (max(image.shape[axis] for image in images_HW3) for axis in (0, 1))
    num_rows = -(-len(images_HW3) // columns)
    num_columns = min(columns, len(images_HW3))
    sheet = np.full(
        (num_rows * (height + _GAP_PX) - _GAP_PX, num_columns * (width + _GAP_PX) - _GAP_PX, 3), 255, np.uint8
    )
    for number, image in enumerate(images_HW3):
        top, left = (number // columns) * (height + _GAP_PX), (number % columns) * (width + _GAP_PX)
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return sheet


def fit_size(image_rgb: Uint8Array, aspect_hw: tuple[int, ...] | None = None) -> Uint8Array:
    """Scale an image so that its longer side is within the limits, with the aspect ratio of `aspect_hw` if given."""
    height, width = aspect_hw or image_rgb.shape[:2]
    scale = min(max(1.0, _MIN_SIDE_PX / max(height, width)), _MAX_SIDE_PX / max(height, width))
    size_wh = max(1, round(scale * width)), max(1, round(scale * height))
    method = Image.Resampling.NEAREST if scale > 1 and aspect_hw is None else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(np.ascontiguousarray(image_rgb)).resize(size_wh, method))


def _under_heading(image_rgb: Uint8Array, text: str) -> Uint8Array:
    strip = Image.new("RGB", (image_rgb.shape[1], _HEADING_PX), (255, 255, 255))
    ImageDraw.Draw(strip).text((2, 1), text, fill=(0, 0, 0), font=ImageFont.load_default(size=_HEADING_FONT_PX))
    return np.concatenate([np.asarray(strip), image_rgb])
