import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.network_config import FixedShapeResizer
from detloom.trainer_module.preprocess import network_hw, normalize_image, resize_image

# 64 x 32 pixels: 0 in the left half, 200 in the right
HALVES = tf.constant(np.broadcast_to(np.arange(32)[None, :, None] // 16 * 200, (64, 32, 3)).astype(np.uint8))


@pytest.mark.parametrize(
    ("method", "row"),
    [
        # To 33 columns: column 16's centre, 16.5, lies at 16.5 * 32 / 33 = 16 on the edge between the two halves.
        ("BILINEAR", 100.0),
        ("BICUBIC", 100.0),
        ("NEAREST_NEIGHBOR", 200.0),
        ("AREA", 100.0),  # from 15.52 to 16.48: half of it on either side
    ],
)
def test_every_method_gives_float_pictures_of_the_networks_size(method, row):
    resizer = FixedShapeResizer(height=40, width=33, resize_method=method)
    resized = resize_image(HALVES, resizer)
    assert (resized.shape, resized.dtype) == ((40, 33, 3), tf.float32)
    assert network_hw(resizer) == (40, 33)
    np.testing.assert_allclose(resized[20, 16], [row] * 3, atol=1e-3)


def test_pixels_are_scaled_to_minus_one_to_one():
    np.testing.assert_allclose(normalize_image(tf.constant([0.0, 127.5, 255.0])), [-1.0, 0.0, 1.0])
