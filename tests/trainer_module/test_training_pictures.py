import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.augmentation_config import RandomHorizontalFlip
from detloom.schemas.label_map import LabelMap
from detloom.schemas.mixing_config import MixUp
from detloom.schemas.network_config import KeepAspectRatioResizer
from detloom.schemas.presets import find_preset
from detloom.trainer_module import training_pictures
from detloom.trainer_module.draw import color_of_class
from detloom.trainer_module.input_pipeline import build_eval_dataset
from detloom.trainer_module.preprocess import normalize_image
from detloom.trainer_module.training_pictures import (
    MAX_PICTURES,
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
    """The true box in every picture, and one that is unsure."""
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
    "preset", ["ssd_mobilenet_v2_fpnlite_320x320", "ssd_resnet50_v1_fpn_640x640", "efficientdet_d0"]
)
def test_colors_are_those_of_before_normalization(preset):
    model = find_preset(preset).config.model
    colors = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    normalized = normalize_image(tf.cast(colors, tf.float32), model)
    np.testing.assert_array_equal(restore_colors(normalized.numpy(), model), colors)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_colors_come_back_in_their_order_where_the_network_takes_blue_first(center_net_configs, name):
    model, colors = center_net_configs[name], np.array([[[255, 10, 0], [1, 2, 3]]], np.uint8)
    normalized = normalize_image(tf.cast(colors, tf.float32), model)
    np.testing.assert_array_equal(restore_colors(normalized.numpy(), model), colors)


def test_values_beyond_colors_are_cut_off_and_a_pixel_with_nan_is_black(tiny_config):
    image = np.array([[[2.0, -3.0, 0.0], [1.0, 1.0, np.nan]]], np.float32)  # -1 to 1 is black to white
    assert restore_colors(image, tiny_config.model).tolist() == [[[255, 0, 128], [0, 0, 0]]]


def test_an_augmented_picture_shows_its_boxes_in_the_networks_frame(tiny_config, changed, shards):
    """48 x 96 pixels become 32 x 64, with as much padding below, shown four times as large."""
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    config = changed(tiny_config, {"model.image_resizer": resizer, "train.augmentations": (RandomHorizontalFlip(),)})
    (image,) = draw_augmented(config, LABEL_MAP, shards, 1)
    assert image.shape == (240, 240, 3)  # 64 times 3.75
    # The padding is 0 in the network's units, which is grey; the box ends at row 0.75 * 32 of 64.
    assert image[200, 120].tolist() == [128, 128, 128]
    assert tuple(image[round(0.375 * 239), 120]) == color_of_class(7)


def test_as_many_pictures_are_drawn_as_are_asked_for_and_no_more_than_the_limit(tiny_config, shards):
    assert draw_augmented(tiny_config, LABEL_MAP, shards, 0) == []
    assert len(draw_augmented(tiny_config, LABEL_MAP, shards, 100)) == MAX_PICTURES == 16


def test_pictures_that_are_mixed_come_from_batches_of_training(tiny_config, changed, shards):
    mixing = changed(tiny_config, {"train.augmentations": (MixUp(probability=1.0),)})
    assert len(draw_augmented(mixing, LABEL_MAP, shards, 3)) == 3  # two batches of two


def test_a_box_that_counts_less_says_so(tiny_config, monkeypatch):
    labels = []
    monkeypatch.setattr(training_pictures, "draw_detections", lambda image, *args: labels.append(args[2]) or image)
    batch = {
        "image": tf.zeros([1, 64, 64, 3]),
        "boxes_yxyx_rel": tf.constant([[BOX, BOX, BOX]]),
        "class_indices": tf.constant([[1, 0, -1]]),
        "box_weights": tf.constant([[0.25, 1.0, 0.0]]),
    }
    draw_train_batch(batch, tiny_config.model, LABEL_MAP, 1)
    assert labels == [["b x0.25", "a"]]


def test_truth_and_detections_stand_side_by_side_in_the_pictures_own_shape(tiny_config, shards):
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=2)
    pictures = draw_beside_truth(detect_once, dataset, tiny_config.model, LABEL_MAP, 3)
    # The network's 64 x 64 are 48 x 96 again, 2.5 times as large; two of them, a gap of 4 and a heading of 20.
    assert [picture.shape for picture in pictures] == [(140, 484, 3)] * 3
    assert has_color(pictures[0][:, :240], 7)
    assert has_color(pictures[0][:, 244:], 7)
    assert not has_color(pictures[0], 1)  # at a score of 0.1


def test_where_nothing_is_found_the_right_side_is_the_picture(tiny_config, shards):
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=2)
    (picture,) = draw_beside_truth(detect_nothing, dataset, tiny_config.model, LABEL_MAP, 1)
    assert has_color(picture[:, :240], 7)
    assert not has_color(picture[:, 244:], 7)


def test_only_the_batches_that_are_shown_are_read(tiny_config, shards):
    seen = []

    def detect(batch):
        seen.append(len(batch["image"]))
        return detect_once(batch)

    dataset = build_eval_dataset(tiny_config, LABEL_MAP, shards, batch_size=1)
    draw_beside_truth(detect, dataset, tiny_config.model, LABEL_MAP, 2)
    assert seen == [1, 1]
    assert draw_beside_truth(detect, dataset, tiny_config.model, LABEL_MAP, 0) == []
    assert seen == [1, 1]


def test_large_pictures_are_drawn_small(tiny_config, tmp_path, make_example, write_records):
    large = str(write_records(tmp_path / "large", [make_example([BOX], [1], image_hw=(900, 1200))]))
    dataset = build_eval_dataset(tiny_config, LABEL_MAP, [large], batch_size=1)
    (picture,) = draw_beside_truth(detect_once, dataset, tiny_config.model, LABEL_MAP, 1)
    assert picture.shape == (380, 964, 3)  # 360 x 480 each


def test_a_sheet_has_rows_of_so_many_columns_and_white_where_nothing_is():
    images = [np.full((2, 3, 3), grey, np.uint8) for grey in (10, 20, 30)]
    sheet = arrange(images, columns=2)
    assert sheet.shape == (2 + 4 + 2, 3 + 4 + 3, 3)
    assert (sheet[0, 0, 0], sheet[0, 7, 0], sheet[6, 0, 0], sheet[6, 7, 0]) == (10, 20, 30, 255)
