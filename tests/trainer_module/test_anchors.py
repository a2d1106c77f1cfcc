import numpy as np

from detloom.schemas.model_config import MultiscaleAnchorGenerator
from detloom.trainer_module.anchors import build_anchors, num_anchors_per_location


def make_generator(**settings):
    return MultiscaleAnchorGenerator(**{"aspect_ratios": (1.0,), "scales_per_octave": 1, **settings})


def test_the_first_anchor_by_hand():
    # level 3: stride 8, first centre (4, 4), side 4 * 8 = 32: from -12 to 20 px of 320
    np.testing.assert_allclose(
        build_anchors(make_generator(), (320, 320))[0], np.array([-12, -12, 20, 20]) / 320, atol=1e-7
    )


def test_a_level_whose_stride_does_not_divide_the_picture_starts_at_zero():
    # level 7: stride 128, 320 / 128 = 2.5, so 3 x 3 centres at 0, 128, 256; side 128: the first from -64 to 64
    anchors = build_anchors(make_generator(anchor_scale=1), (320, 320))
    np.testing.assert_allclose(anchors[-9], np.array([-64, -64, 64, 64]) / 320, atol=1e-7)


def test_wide_anchors_are_wide():
    generator = make_generator(aspect_ratios=(4.0,), max_level=5)
    ymin, xmin, ymax, xmax = build_anchors(generator, (64, 128))[0] * [64, 128, 64, 128]
    # side 4 * 8 = 32, ratio 4: width 32 * 2, height 32 / 2
    np.testing.assert_allclose([ymax - ymin, xmax - xmin], [16, 64], rtol=1e-5)


def test_anchors_equal_the_reference(reference_dir, zoo_config):
    stored = np.load(reference_dir / "ssd_mobilenet_v2_fpnlite_320x320" / "predictions_eval.npz")["anchors"]
    generator = zoo_config.model.anchor_generator
    assert num_anchors_per_location(generator) == (6,) * 5
    np.testing.assert_allclose(build_anchors(generator, (320, 320)), stored, atol=1e-6)
