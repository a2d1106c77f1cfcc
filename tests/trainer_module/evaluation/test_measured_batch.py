import dataclasses

import numpy as np
import pytest

from detloom.trainer_module.boxes.masks import encode_masks
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.measured_batch import MeasuredBatch, pack_batches, unpack_batches

RNG = np.random.default_rng(0)


def image_of(num_boxes, optional):
    """Return ground truth and detections, `num_boxes` of each; with `optional`, also masks and keypoints."""
    boxes = RNG.random((num_boxes, 4)).astype(np.float32)
    columns = {}
    if optional:
        columns["mask_counts"] = encode_masks(RNG.random((num_boxes, 6, 8)) < 0.5)
        columns["keypoints_yx_rel"] = np.full((num_boxes, 3, 2), np.nan, np.float32)
    truth = ImageGroundTruth(0, (6, 8), boxes, np.ones(num_boxes, int), np.zeros(num_boxes, bool), **columns)
    found = ImageDetections(0, boxes / 2, boxes[:, 0], np.full(num_boxes, 7), **columns)
    return truth, found


def batch_of(number, *sizes, optional=False, **losses):
    images = [image_of(size, optional) for size in sizes]
    return MeasuredBatch(number, [truth for truth, _ in images], [found for _, found in images], losses)


def assert_equal(one, other):
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        assert type(left) is type(right), field.name
        if isinstance(left, np.ndarray):
            assert (left.dtype, left.shape) == (right.dtype, right.shape), field.name
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right, field.name


@pytest.mark.parametrize("optional", [False, True])
def test_batches_survive_packing(optional):
    batches = [
        batch_of(3, 2, 0, optional=optional, class_loss=0.1, box_loss=1 / 3),
        batch_of(5, 1, optional=optional, class_loss=float("nan"), box_loss=2.0),
    ]
    found = unpack_batches(pack_batches(batches))
    assert [each.number for each in found] == [3, 5]
    for one, other in zip(batches, found, strict=True):
        assert repr(one.losses) == repr(other.losses)
        for left, right in zip(one.ground_truth + one.detections, other.ground_truth + other.detections, strict=True):
            assert_equal(left, right)


def test_a_worker_without_batches_gives_none():
    assert unpack_batches(pack_batches([])) == []
