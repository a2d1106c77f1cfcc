from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.detectors.faster_rcnn.proposals import select_proposals

ANCHORS = tf.constant(
    [[0.0, 0, 40, 40], [0, 0, 40, 44], [50, 50, 80, 80], [60, 10, 90, 30], [-9, 70, -1, 90]],
)


def select(config, logits, offsets=None, true_hw=((96, 96),), *, jit: bool = False):
    objectness = tf.constant([[[0.0, logit] for logit in logits]])
    offsets = tf.zeros([1, len(logits), 4]) if offsets is None else offsets
    anchors = ANCHORS[: len(logits)]
    run = tf.function(
        lambda: select_proposals(config, anchors, offsets, objectness, tf.constant(true_hw)), jit_compile=jit
    )
    return run()


@pytest.mark.parametrize("jit", [False, True])
def test_overlapping_boxes_and_boxes_outside_are_dropped(plain_config, jit):
    # Anchor 0 overlaps anchor 1 by 40 / 44; anchor 4 is above the image.
    found = select(plain_config, [1.0, 2.0, 0.0, 3.0, 4.0], jit=jit)
    assert found.num_B.numpy().tolist() == [3]
    assert found.boxes_yxyx_px_BP4.shape == (1, 20, 4)
    np.testing.assert_allclose(found.boxes_yxyx_px_BP4[0, :4], [*tf.gather(ANCHORS, [3, 1, 2]).numpy(), [0] * 4])
    wanted = [1 / (1 + np.exp(-3)), 1 / (1 + np.exp(-2)), 0.5, 0]
    np.testing.assert_allclose(found.scores_BP[0, :4], wanted, rtol=1e-6)


def test_boxes_are_clipped_to_the_image_without_padding(plain_config):
    found = select(plain_config, [1.0, -9.0, 2.0, -9.0], true_hw=((60, 70),))
    # Anchor 3 begins at row 60, where the image ends.
    assert found.num_B.numpy().tolist() == [2]
    np.testing.assert_allclose(found.boxes_yxyx_px_BP4[0, :2], [[50, 50, 60, 70], [0, 0, 40, 40]])


def test_a_box_outside_takes_the_place_of_another(plain_config):
    found = select(replace(plain_config, first_stage_max_proposals=2, second_stage_batch_size=2), [0, 0, 1.0, 2.0, 3.0])
    assert found.num_B.numpy().tolist() == [1]
    np.testing.assert_allclose(found.boxes_yxyx_px_BP4[0], [ANCHORS[3].numpy(), [0] * 4])


def test_offsets_move_the_anchors(plain_config):
    # A tenth of the height down, half as high: exp(-0.6931) = 0.5.
    offsets = tf.constant([[[1.0, 0.0, 5 * np.log(0.5), 0.0]]], tf.float32)
    found = select(plain_config, [0.0], offsets)
    np.testing.assert_allclose(found.boxes_yxyx_px_BP4[0, 0], [14, 0, 34, 40], atol=1e-4)
