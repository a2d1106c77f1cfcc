"""Pictures of a training for people: what the network is fed, and what it finds beside what is there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from detloom.schemas import detections as names
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.augmentations.mixing import mixings_of
from detloom.trainer_module.draw import draw_detections
from detloom.trainer_module.input_pipeline import build_train_dataset
from detloom.trainer_module.preprocess import normalize_image

DetectBatch = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
MAX_PICTURES = 16  # of one kind, whatever the configuration asks for
_MIN_SIDE_PX, _MAX_SIDE_PX = 240, 480  # of the longer side: labels are legible, and files stay small
_MIN_SCORE, _MAX_DRAWN = 0.2, 20  # defaults of the Object Detection API's draw_side_by_side_evaluation_image
_GAP_PX, _HEADING_PX, _HEADING_FONT_PX = 4, 20, 14
_SHUFFLED_RECORDS = 64  # pictures to look at are drawn among so many, instead of filling a second buffer


def draw_augmented(
    config: TrainEvalConfig, label_map: LabelMap, files: Sequence[str], num_pictures: int, *, step: int = 0
) -> list[npt.NDArray[np.uint8]]:
    """Training pictures from `step` on as the network takes them, with their boxes.

    They are read anew, and drawn among fewer records than training draws from.
    """
    count = min(num_pictures, MAX_PICTURES)
    if not count:
        return []
    reader = config.train_input
    few = replace(reader, shuffle_buffer_size=min(reader.shuffle_buffer_size, _SHUFFLED_RECORDS))
    # Only where pictures are mixed with others of the batch does its size say what they look like.
    batch_size = config.train.batch_size if mixings_of(config.train.augmentations) else count
    dataset = build_train_dataset(
        replace(config, train_input=few), label_map, files, batch_size=batch_size, start_step=step
    )
    drawn: list[npt.NDArray[np.uint8]] = []
    for batch in dataset:
        drawn += draw_train_batch(batch, config.model, label_map, count - len(drawn))
        if len(drawn) == count:
            break
    return drawn


def draw_train_batch(
    batch: dict[str, tf.Tensor], model: Model, label_map: LabelMap, num_pictures: int
) -> list[npt.NDArray[np.uint8]]:
    """The first pictures of a batch of `build_train_dataset`: colours of 0 to 255 again, padding included.

    A box that does not count as one says for how much.
    """
    drawn = []
    for i in range(min(num_pictures, int(batch["image"].shape[0]))):
        row = {name: np.asarray(value[i]) for name, value in batch.items()}
        image = fit_size(restore_colors(row["image"], model))
        is_box = row["class_indices"] >= 0
        weights = row.get("box_weights", np.ones(is_box.shape))[is_box]
        ids = np.array(label_map.class_ids)[row["class_indices"][is_box]]
        labels = [
            label_map.name_of(int(class_id)) + ("" if weight == 1 else f" x{weight:.2g}")
            for class_id, weight in zip(ids, weights, strict=True)
        ]
        drawn.append(np.asarray(draw_detections(image, row["boxes_yxyx_rel"][is_box], ids, labels)))
    return drawn


def draw_beside_truth(
    detect: DetectBatch, dataset: tf.data.Dataset, model: Model, label_map: LabelMap, num_pictures: int
) -> list[npt.NDArray[np.uint8]]:
    """The first pictures of a split: ground truth on the left, the surest detections on the right.

    Args:
        detect: see `Evaluator.detect_batch`.
        dataset: of `build_eval_dataset`; only the batches that are needed are read.
    """
    drawn: list[npt.NDArray[np.uint8]] = []
    count = min(num_pictures, MAX_PICTURES)
    for batch in dataset if count else ():
        outputs = {name: value.numpy() for name, value in detect(batch).items()}
        for i in range(min(count - len(drawn), len(batch["image"]))):
            row = {name: np.asarray(value[i]) for name, value in batch.items()}
            found = {name: value[i] for name, value in outputs.items()}
            drawn.append(_side_by_side(row, found, model, label_map))
        if len(drawn) >= count:
            break
    return drawn


def _side_by_side(
    row: dict[str, npt.NDArray[Any]], found: dict[str, npt.NDArray[Any]], model: Model, label_map: LabelMap
) -> npt.NDArray[np.uint8]:
    rows, columns = row["true_hw"]
    image = fit_size(restore_colors(row["image"][:rows, :columns], model), aspect_hw=tuple(row["image_hw"]))
    is_box = row["class_indices"] >= 0
    true_ids = np.array(label_map.class_ids)[row["class_indices"][is_box]]
    true_names = [
        label_map.name_of(int(class_id)) + (" (crowd)" if is_crowd else "")
        for class_id, is_crowd in zip(true_ids, row["is_crowd"][is_box], strict=True)
    ]
    truth = draw_detections(image, row["boxes_yxyx_rel"][is_box], true_ids, true_names)
    num_sure = int(np.count_nonzero(found[names.SCORES][: int(found[names.NUM_DETECTIONS])] >= _MIN_SCORE))
    is_sure = slice(min(num_sure, _MAX_DRAWN))  # they are in the order of their scores
    found_ids = found[names.CLASSES][is_sure].astype(int)
    found_names = [label_map.name_of(int(class_id)) for class_id in found_ids]
    scores = found[names.SCORES][is_sure]
    detections = draw_detections(image, found[names.BOXES][is_sure], found_ids, found_names, scores)
    of_more = f", the surest of {num_sure}" if num_sure > len(found_ids) else ""
    headings = (f"ground truth: {len(true_ids)}", f"scored {_MIN_SCORE} or more: {len(found_ids)}{of_more}")
    panels = [
        _under_heading(np.asarray(panel), text) for panel, text in zip((truth, detections), headings, strict=True)
    ]
    return arrange(panels, columns=2)


def restore_colors(image_HW3: npt.NDArray[Any], model: Model) -> npt.NDArray[np.uint8]:
    """What `normalize_image` made of colours of 0 to 255, undone; what is not finite becomes black.

    It is an affine map of the three channels, so where it takes 0 and the three unit colours says all of it.
    """
    zero = normalize_image(tf.zeros([3]), model).numpy().astype(np.float64)
    units = np.stack([normalize_image(tf.one_hot(i, 3), model).numpy().astype(np.float64) - zero for i in range(3)])
    colors = (np.asarray(image_HW3, np.float64) - zero) @ np.linalg.inv(units)
    return np.rint(np.clip(np.nan_to_num(colors, nan=0.0), 0, 255)).astype(np.uint8)


def arrange(images_HW3: Sequence[npt.NDArray[np.uint8]], *, columns: int) -> npt.NDArray[np.uint8]:
    """One picture with the given ones in rows, on white; they may differ in size."""
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


def fit_size(image_rgb: npt.NDArray[np.uint8], aspect_hw: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """The picture with a longer side in between the two limits, its sides as those of `aspect_hw` if that is given."""
    height, width = aspect_hw or image_rgb.shape[:2]
    scale = min(max(1.0, _MIN_SIDE_PX / max(height, width)), _MAX_SIDE_PX / max(height, width))
    size_wh = max(1, round(scale * width)), max(1, round(scale * height))
    method = Image.Resampling.NEAREST if scale > 1 and aspect_hw is None else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(np.ascontiguousarray(image_rgb)).resize(size_wh, method))


def _under_heading(image_rgb: npt.NDArray[np.uint8], text: str) -> npt.NDArray[np.uint8]:
    strip = Image.new("RGB", (image_rgb.shape[1], _HEADING_PX), (255, 255, 255))
    ImageDraw.Draw(strip).text((2, 1), text, fill=(0, 0, 0), font=ImageFont.load_default(size=_HEADING_FONT_PX))
    return np.concatenate([np.asarray(strip), image_rgb])
