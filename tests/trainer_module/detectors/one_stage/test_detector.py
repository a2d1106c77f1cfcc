import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.network import ConvolutionalBoxPredictor, ExtraFeatureLayers
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.detectors.one_stage.network import build_ssd
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

EXTRACTOR, HEAD = "feature_extractor.conv_hyperparams", "box_predictor.conv_hyperparams"
THREE = LabelMap.from_names(["a", "b", "c"])


@pytest.mark.parametrize(
    ("image_hw", "levels"),
    [((320, 320), (3, 7)), ((96, 160), (4, 6)), ((48, 80), (3, 4)), ((313, 96), (3, 5))],
)
def test_anchors_and_network_agree_for_other_sizes_and_levels(tiny_config, changed, image_hw, levels):
    low, high = levels
    both = {"feature_extractor.neck", "anchor_generator"}
    settings = {f"{part}.min_level": low for part in both} | {f"{part}.max_level": high for part in both}
    size = {"image_resizer.height": image_hw[0], "image_resizer.width": image_hw[1]}
    detector = build_detector(changed(tiny_config.model, {**settings, **size}), THREE)
    assert detector.network.output["offsets_BA4"].shape == (None, len(detector.anchors_yxyx_rel_A4), 4)


@pytest.mark.parametrize("settings", [{}, {"feature_extractor.pad_to_multiple": 64}])
def test_anchors_and_network_agree_for_plain_ssd(tiny_config, changed, settings):
    """Extra layers under heads of each level; the number of anchors a place differs."""
    hyperparams = tiny_config.model.box_predictor.conv_hyperparams
    plain = {
        "image_resizer.height": 75,  # odd sizes: 5, 3, 2, 1 rows
        "feature_extractor.neck": ExtraFeatureLayers(num_layers=4),
        "anchor_generator": SsdAnchorGenerator(num_layers=4, aspect_ratios=(1.0, 2.0)),
        "box_predictor": ConvolutionalBoxPredictor(conv_hyperparams=hyperparams),
    }
    detector = build_detector(changed(tiny_config.model, {**plain, **settings}), THREE)
    rows, columns = ((8, 4, 2, 1), (4, 2, 1, 1)) if settings else ((5, 3, 2, 1), (4, 2, 1, 1))
    per_place = (3, 3, 3, 3)  # two aspect ratios and a scale in between; three of its own in the finest
    expected = sum(r * c * n for r, c, n in zip(rows, columns, per_place, strict=True))
    assert len(detector.anchors_yxyx_rel_A4) == expected
    assert detector.network.output["offsets_BA4"].shape == (None, expected, 4)


def test_images_are_padded_with_zeros_below_and_to_the_right(tiny_config, changed):
    """Exactly as if they came with the padding."""
    size = {"image_resizer.height": 40, "image_resizer.width": 50, "feature_extractor.pad_to_multiple": 32}
    network = build_ssd(changed(tiny_config.model, size), 1)
    whole = build_ssd(changed(tiny_config.model, {"feature_extractor.pad_to_multiple": 32}), 1)
    assert "image_pad" not in {layer.name for layer in whole.layers}
    assert network.get_layer("image_pad").output.shape == (None, 64, 64, 3)
    whole.set_weights(network.get_weights())
    images = tf.random.stateless_normal([1, 40, 50, 3], [0, 0])
    padded = tf.pad(images, [[0, 0], [0, 24], [0, 14], [0, 0]])
    np.testing.assert_array_equal(network(images)["class_logits_BAC"], whole(padded)["class_logits_BAC"])


def test_anchors_of_padded_images_are_relative_to_the_unpadded_image(tiny_config, changed):
    """Padding 48 rows to 64 gives 2 rows at level 5; the center of the second is at the end of the image."""
    size = {"image_resizer.height": 48, "feature_extractor.pad_to_multiple": 32}
    levels = {f"{part}.min_level": 5 for part in ("feature_extractor.neck", "anchor_generator")}
    detector = build_detector(changed(tiny_config.model, {**size, **levels}), THREE)
    boxes = detector.anchors_yxyx_rel_A4.numpy()
    # 32 does not divide 48, so that the grid starts at 0: 0 and 32 of 48 rows.
    np.testing.assert_allclose((boxes[:, 0] + boxes[:, 2]) / 2, [0, 0, 32 / 48, 32 / 48], atol=1e-6)


def test_batch_norm_and_channels_have_the_settings_of_each_group(tiny_config, changed):
    settings = {f"{EXTRACTOR}.batch_norm.decay": 0.8, f"{HEAD}.batch_norm.decay": 0.7, "freeze_batchnorm": True}
    network = build_ssd(changed(tiny_config.model, {**settings, "box_predictor.depth": 24}), 1)
    layers = [layer for layer in network.layers if isinstance(layer, FusedBatchNorm)]
    assert {layer.momentum for layer in layers if layer.name.startswith("head")} == {0.7}
    assert {layer.momentum for layer in layers if not layer.name.startswith("head")} == {0.8}
    assert all(layer.use_moving_statistics for layer in layers)
    assert network.get_layer("neck_lateral_3").filters == 16  # 128 * 0.125
    assert network.get_layer("head_conv_0").filters == 24


@pytest.mark.slow
def test_a_step_in_low_precision_is_close_to_float32(small_config, assert_low_precision_is_close):
    """The coarsest level has 2 x 2 pixels; batch norm divides by their small differences."""
    assert_low_precision_is_close(small_config.model, bfloat16=(0.01, 0.3), float16=(0.004, 0.3))
