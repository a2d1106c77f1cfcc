import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.augmentations import MixUp, RandomHorizontalFlip
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.data.input_pipeline import build_eval_dataset
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.drawing import training_images as training_images
from detloom.trainer_module.drawing.draw import color_of_class
from detloom.trainer_module.drawing.training_images import (
    MAX_IMAGES,
    arrange,
    draw_augmented,
    draw_beside_truth,
    draw_train_batch,
    restore_colors,
)

LABEL_MAP = LabelMap(((1, "a"), (7, "b")))
BOX = (0.25, 0.25, 0.75, 0.75)


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    records = [make_example([BOX], [7], name=f"{number}", image_hw=(48, 96)) for number in range(3)]
    return [str(write_records(tmp_path / "data", records))]


def detect_nothing(batch):
    return detect_once(batch, scores=(0.0, 0.0), num_detections=0)


def detect_once(batch, *, scores=(0.9, 0.1), num_detections=2):
    """Return the true box in every image, and one with a low score."""
    num_images = len(batch["image"])
    return {
        names.BOXES: tf.tile(tf.constant([[BOX, (0.0, 0.0, 0.1, 0.1)]]), [num_images, 1, 1]),
        names.SCORES: tf.tile(tf.constant([scores]), [num_images, 1]),
        names.CLASSES: tf.tile(tf.constant([[7.0, 1.0]]), [num_images, 1]),
        names.NUM_DETECTIONS: tf.fill([num_images], float(num_detections)),
    }


def has_color(image, class_id):
    return bool((image == color_of_class(class_id)).all(axis=-1).any())


@pytest.mark.parametrize(
    "preset", ["ssd_mobilenet_v2_fpnlite_320x320", "ssd_resnet50_v1_fpn_640x640", "efficientdet_d0", "bgr"]
)
def test_restore_colors_inverts_normalization(preset, center_net_configs):
    model = center_net_configs["mobilenet_v2"] if preset == "bgr" else find_preset(preset).config.model
    colors = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    normalized = family_of(model).preprocessing.normalize(tf.cast(colors, tf.float32))
    np.testing.assert_array_equal(restore_colors(normalized.numpy(), model), colors)


def test_restored_colors_are_clipped_and_nan_becomes_black(tiny_config):
    image = np.array([[[2.0, -3.0, 0.0], [1.0, 1.0, np.nan]]], np.float32)  # -1 to 1 is black to white
    assert restore_colors(image, tiny_config.model).tolist() == [[[255, 0, 128], [0, 0, 0]]]


def test_augmented_image_is_drawn_in_the_network_frame(tiny_config, changed, shards):
    """48 x 96 pixels become 32 x 64, padded to 64 x 64 below, and are drawn 3.75 times as large."""
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    config = changed(tiny_config, {"model.image_resizer": resizer, "train.augmentations": (RandomHorizontalFlip(),)})
    (image,) = draw_augmented(config, LABEL_MAP, shards, 1)
    assert image.shape == (240, 240, 3)  # 64 times 3.75
    # Padding is 0 after normalization, which is grey; the box ends at row 0.75 * 32 of 64.
    assert image[200, 120].tolist() == [128, 128, 128]
    assert tuple(image[round(0.375 * 239), 120]) == color_of_class(7)


def test_number_of_drawn_images_is_limited(tiny_config, shards):
    assert draw_augmented(tiny_config, LABEL_MAP, shards, 0) == []
    assert len(draw_augmented(tiny_config, LABEL_MAP, shards, 100)) == MAX_IMAGES == 16


def test_mixed_images_come_from_training_batches(tiny_config, changed, shards):
    mixing = changed(tiny_config, {"train.augmentations": (MixUp(probability=1.0),)})
    assert len(draw_augmented(mixing, LABEL_MAP, shards, 3)) == 3  # two batches of two


def test_label_shows_a_box_weight_other_than_one(tiny_config, monkeypatch):
    labels = []
    monkeypatch.setattr(training_images, "draw_objects", lambda image, *args, **shapes: labels.append(args[2]) or image)
    batch = {
        "image": tf.zeros([1, 64, 64, 3]),
        "boxes_yxyx_rel": tf.constant([[BOX, BOX, BOX]]),
        "class_indices": tf.constant([[1, 0, -1]]),
        "box_weights": tf.constant([[0.25, 1.0, 0.0]]),
    }
    draw_train_batch(batch, LABEL_MAP, 1)
    assert labels == [["b x0.25", "a"]]


def test_truth_and_detections_are_drawn_side_by_side_with_the_original_aspect_ratio(tiny_config, shards):
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=2)
    images = draw_beside_truth(detect_once, dataset, tiny_config.model, LABEL_MAP, 3)
    # 64 x 64 becomes 48 x 96 again, times 2.5; two panels, a gap of 4 and a heading of 20.
    assert [image.shape for image in images] == [(140, 484, 3)] * 3
    assert has_color(images[0][:, :240], 7)
    assert has_color(images[0][:, 244:], 7)
    assert not has_color(images[0], 1)  # at a score of 0.1


def test_right_side_is_the_plain_image_without_detections(tiny_config, shards):
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=2)
    (image,) = draw_beside_truth(detect_nothing, dataset, tiny_config.model, LABEL_MAP, 1)
    assert has_color(image[:, :240], 7)
    assert not has_color(image[:, 244:], 7)


def test_only_required_batches_are_read(tiny_config, shards):
    seen = []

    def detect(batch):
        seen.append(len(batch["image"]))
        return detect_once(batch)

    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=1)
    draw_beside_truth(detect, dataset, tiny_config.model, LABEL_MAP, 2)
    assert seen == [1, 1]
    assert draw_beside_truth(detect, dataset, tiny_config.model, LABEL_MAP, 0) == []
    assert seen == [1, 1]


def test_large_images_are_scaled_down(tiny_config, tmp_path, make_example, write_records):
    large = str(write_records(tmp_path / "large", [make_example([BOX], [1], image_hw=(900, 1200))]))
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, [large], batch_size=1)
    (image,) = draw_beside_truth(detect_once, dataset, tiny_config.model, LABEL_MAP, 1)
    assert image.shape == (380, 964, 3)  # 360 x 480 each


def test_arrange_fills_rows_and_leaves_gaps_white():
    images = [np.full((2, 3, 3), grey, np.uint8) for grey in (10, 20, 30)]
    sheet = arrange(images, columns=2)
    assert sheet.shape == (2 + 4 + 2, 3 + 4 + 3, 3)
    assert (sheet[0, 0, 0], sheet[0, 7, 0], sheet[6, 0, 0], sheet[6, 7, 0]) == (10, 20, 30, 255)
