import dataclasses

import numpy as np
import pytest

from detloom.trainer_module.boxes.masks import encode_masks
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.measured_batch import MeasuredBatch, decode_batches, encode_batches


def images_of(num_boxes, **columns):
    boxes = np.random.default_rng(0).random((num_boxes, 4)).astype(np.float32)
    truth = ImageGroundTruth(0, (6, 8), boxes, np.ones(num_boxes, int), np.zeros(num_boxes, bool), **columns)
    return truth, ImageDetections(0, boxes / 2, boxes[:, 0], np.full(num_boxes, 7), **columns)


def assert_equal(one, other):
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        assert type(left) is type(right), field.name
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
        np.testing.assert_array_equal(left, right, field.name)


def test_batches_keep_values_and_types_of_arrays():
    masks = encode_masks(np.eye(6, 8)[np.newaxis] != [[[0]], [[1]]])
    points = np.full((2, 3, 2), np.nan, np.float32)
    shaped, plain = images_of(2, mask_counts=masks, keypoints_yx_rel=points), images_of(0)
    batches = [
        MeasuredBatch(3, [shaped[0], plain[0]], [shaped[1], plain[1]], {"class_loss": float("nan"), "box_loss": 1 / 3}),
        MeasuredBatch(5, [], [], {}),
    ]
    found = decode_batches(encode_batches(batches))
    assert [(each.number, repr(each.losses)) for each in found] == [
        (3, "{'class_loss': nan, 'box_loss': 0.3333333333333333}"),
        (5, "{}"),
    ]
    for one, other in zip(batches, found, strict=True):
        for left, right in zip(one.ground_truth + one.detections, other.ground_truth + other.detections, strict=True):
            assert_equal(left, right)


def test_objects_in_an_array_are_refused():
    content = encode_batches([MeasuredBatch(0, *([image] for image in images_of(1)), {})])
    with pytest.raises(ValueError, match="OBJECT"):
        decode_batches(content.replace(b'"<f4"', b'"|O"'))
