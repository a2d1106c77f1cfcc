import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools import mask as coco_mask

from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import (
    decode_mask,
    encode_box_masks,
    encode_mask_pngs,
    encode_masks,
    format_mask,
    mask_area_px,
    paste_mask,
)


def reference_pixels(boxes_yxyx_rel, masks, image_hw):
    """`reframe_box_masks_to_image_masks` of the Object Detection API and its threshold, by the same TensorFlow op."""
    ymin, xmin, ymax, xmax = tf.unstack(tf.constant(boxes_yxyx_rel, tf.float32), axis=1)
    height, width = tf.maximum(ymax - ymin, 1e-4), tf.maximum(xmax - xmin, 1e-4)
    corners = tf.stack([(0 - ymin) / height, (0 - xmin) / width, (1 - ymin) / height, (1 - xmin) / width], axis=1)
    crops = tf.image.crop_and_resize(masks[..., np.newaxis], corners, tf.range(len(masks)), image_hw)
    return crops[..., 0].numpy() > 0.5


@pytest.mark.parametrize("image_hw", [(37, 61), (64, 64), (1, 9)])
def test_pasted_masks_equal_those_of_crop_and_resize(image_hw):
    """Boxes inside, at the border, over it, of less than a pixel and without area."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(-0.1, 0.8, (40, 2))
    boxes = np.concatenate([corners, corners + rng.choice([0, 1e-3, 0.1, 0.6], (40, 2)) * rng.random((40, 2))], axis=1)
    boxes[:2] = [[0, 0, 1, 1], [0.25, 0.25, 0.75, 0.75]]
    masks = rng.random((40, 7, 5)).astype(np.float32)
    expected = reference_pixels(boxes, masks, image_hw)
    assert expected.any()
    found = [paste_mask(box, mask, image_hw) for box, mask in zip(boxes, masks, strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_a_mask_over_half_of_the_image_covers_the_pixels_of_its_cells():
    """Rows 0 to 4 of the image are at 0, 0.5, 1, 1.5, 2 of a box with ymax 0.5, so its cells 0 and 1 are rows 0 and 2.

    Probabilities 1 and 0: row 1 has 0.5, which is not above the threshold. Columns are all inside.
    """
    mask = np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)
    pixels = paste_mask(np.array([0.0, 0.0, 0.5, 1.0]), mask, (5, 3))
    np.testing.assert_array_equal(pixels, [[True] * 3, *([[False] * 3] * 4)])


def test_run_lengths_are_those_of_pycocotools():
    mask = np.zeros((4, 6), bool)
    mask[1:3, 2:5] = True
    (counts,) = encode_masks([mask])
    assert counts == coco_mask.encode(np.asfortranarray(mask, np.uint8))["counts"]
    np.testing.assert_array_equal(decode_mask(counts, (4, 6)), mask)
    assert mask_area_px(counts, (4, 6)) == 6
    assert format_mask(counts, (4, 6)) == {"size": [4, 6], "counts": counts.decode()}


def test_no_mask_is_an_empty_column():
    empty = encode_box_masks(np.zeros((0, 4)), np.zeros((0, 7, 7), np.float32), (4, 6))
    assert (empty.shape, empty.dtype) == ((0,), np.dtype(object))


def test_stored_masks_are_read_from_png_and_must_have_the_size_of_the_image():
    buffer = io.BytesIO()
    Image.fromarray(np.eye(4, dtype=np.uint8)).save(buffer, format="PNG")
    stored, missing = encode_mask_pngs([buffer.getvalue(), b""], (4, 4))
    np.testing.assert_array_equal(decode_mask(stored, (4, 4)), np.eye(4))
    assert mask_area_px(missing, (4, 4)) == 0
    with pytest.raises(InputError, match=r"\(4, 4\) pixels, allowed: the image's, \(4, 5\)"):
        encode_mask_pngs([buffer.getvalue()], (4, 5))
