import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.network import FixedShapeResizer, KeepAspectRatioResizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.detectors.preprocess import network_hw, resize_image

# 64 x 32 pixels: 0 in the left half, 200 in the right
HALVES = tf.constant(np.broadcast_to(np.arange(32)[None, :, None] // 16 * 200, (64, 32, 3)).astype(np.uint8))


@pytest.mark.parametrize(
    ("method", "row"),
    [
        # To 33 columns: column 16 begins at 16 * 32 / 33 = 15.515 of the image, between column 15 (0) and 16 (200).
        ("BILINEAR", 200 * 0.515152),
        # Keys' cubic with a = -0.75 at distances of 0.485 and 1.485: 0.614 of column 16, -0.097 of column 17.
        ("BICUBIC", 103.5),
        ("NEAREST_NEIGHBOR", 0.0),  # rounded down
        ("AREA", 100.0),  # from 15.515 to 16.485: half of it on either side
    ],
)
def test_every_method_returns_float_images_of_the_network_size(method, row):
    resizer = FixedShapeResizer(height=40, width=33, resize_method=method)
    resized = resize_image(HALVES, resizer)
    assert (resized.shape, resized.dtype) == ((40, 33, 3), tf.float32)
    assert network_hw(resizer) == (40, 33)
    np.testing.assert_allclose(resized[20, 16], [row] * 3, atol=0.05)


@pytest.mark.parametrize(
    ("method", "row"),
    [
        # To 33 columns: the centre of column 16 is that of the image, between column 15 (0) and 16 (200).
        ("BILINEAR", 100.0),
        ("BICUBIC", 100.0),
        ("NEAREST_NEIGHBOR", 200.0),
        ("AREA", 100.0),
    ],
)
def test_pixels_can_be_sampled_at_their_centres(method, row):
    resizer = FixedShapeResizer(height=40, width=33, resize_method=method, half_pixel_centers=True)
    np.testing.assert_allclose(resize_image(HALVES, resizer)[20, 16], [row] * 3, atol=0.05)


def keep(low, high, **settings):
    return KeepAspectRatioResizer(min_dimension=low, max_dimension=high, **{"pad_to_max_dimension": True, **settings})


@pytest.mark.parametrize(
    ("image_hw", "resizer", "resized_hw"),
    [
        ((480, 640), keep(512, 512), (384, 512)),  # the longer side limits: 480 * 512 / 640
        ((640, 480), keep(512, 512), (512, 384)),
        ((100, 150), keep(64, 128), (64, 96)),  # the shorter one does: 150 * 64 / 100
        ((100, 300), keep(64, 128), (43, 128)),  # 100 * 128 / 300 = 42.67
        ((50, 64), keep(32, 32), (25, 32)),
        ((125, 100), keep(50, 50), (50, 40)),
        ((45, 64), keep(32, 32), (22, 32)),  # 22.5: halves go to the even number
        ((64, 47), keep(32, 32), (32, 24)),  # 23.5
        ((3, 577), keep(64, 64), (1, 64)),  # 0.33; the reference fails
    ],
)
def test_the_aspect_ratio_is_kept_within_both_limits(image_hw, resizer, resized_hw):
    assert resize_image(tf.zeros([*image_hw, 3]), resizer).shape[:2] == resized_hw


def with_resizer(tiny_config, changed, resizer, backbone="mobilenet_v2"):
    extractor = {"feature_extractor.backbone": backbone} if backbone == "mobilenet_v1" else {}
    return changed(tiny_config.model, {"image_resizer": resizer, **extractor})


def test_padding_is_zero_below_and_to_the_right_after_normalization(tiny_config, changed):
    model = with_resizer(tiny_config, changed, keep(32, 64))
    image, true_hw = family_of(model).preprocessing.prepare(tf.fill([50, 100, 3], 255.0))
    np.testing.assert_array_equal(true_hw, [32, 64])
    assert image.shape == (64, 64, 3)
    np.testing.assert_allclose(image[:32], np.ones([32, 64, 3]), atol=1e-6)
    np.testing.assert_array_equal(image[32:], np.zeros([32, 64, 3]))


def test_padding_values_are_in_the_units_of_the_network(tiny_config, changed):
    model = with_resizer(tiny_config, changed, keep(32, 64, per_channel_pad_value=(-1.0, 0.5, 3.0)))
    image, _ = family_of(model).preprocessing.prepare(tf.fill([100, 50, 3], 255.0))
    np.testing.assert_allclose(image[:, :32], np.ones([64, 32, 3]), atol=1e-6)
    np.testing.assert_array_equal(image[:, 32:], np.broadcast_to([-1.0, 0.5, 3.0], [64, 32, 3]))


def test_a_batch_is_prepared_like_its_images(tiny_config, changed):
    model = with_resizer(tiny_config, changed, keep(32, 64))
    batch = tf.random.stateless_uniform([2, 50, 100, 3], [0, 1], maxval=255)
    images, true_hw = family_of(model).preprocessing.prepare(batch)
    assert images.shape == (2, 64, 64, 3)
    for image, single in zip(images, batch, strict=True):
        np.testing.assert_allclose(image, family_of(model).preprocessing.prepare(single)[0], atol=1e-6)
    np.testing.assert_array_equal(true_hw, [32, 64])


@pytest.mark.parametrize(
    ("preset", "black", "white"),
    [
        ("ssd_mobilenet_v1_fpn_640x640", (-1, -1, -1), (1, 1, 1)),
        ("ssd_mobilenet_v2_320x320", (-1, -1, -1), (1, 1, 1)),
        ("ssd_resnet50_v1_fpn_640x640", (-123.68, -116.779, -103.939), (131.32, 138.221, 151.061)),
        # -0.485 / 0.229 and (1 - 0.485) / 0.229, and so on
        ("efficientdet_d0", (-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64)),
    ],
)
def test_colors_are_scaled_for_the_backbone(preset, black, white):
    model = find_preset(preset).config.model
    scaled = family_of(model).preprocessing.normalize(tf.constant([[[0.0] * 3, [255.0] * 3]]))
    np.testing.assert_allclose(scaled[0], [black, white], atol=1e-4)
