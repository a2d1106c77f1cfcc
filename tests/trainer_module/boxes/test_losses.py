import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.losses import HardExampleMiner
from detloom.trainer_module.boxes.losses import hard_examples

# Six boxes side by side, but the second overlaps the first by 0.8 / 1.2.
BOXES = tf.constant([[[0.0, x, 1.0, x + 1.0] for x in (0.0, 0.2, 2.0, 3.0, 4.0, 5.0)]])
CLASS_LOSS = tf.constant([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
BOX_LOSS = tf.constant([[0.0, 0.0, 0.0, 0.0, 10.0, 0.0]])
MATCH = tf.constant([[-1, -1, -1, -2, 0, -1]])


def choose(match=MATCH, box_weight=1.0, choose_hard=hard_examples, **settings):
    miner = HardExampleMiner(**settings)
    chosen = choose_hard(miner, BOXES, CLASS_LOSS, BOX_LOSS, match, class_weight=1.0, box_weight=box_weight)
    return chosen[0].numpy().tolist()


def test_the_higher_loss_of_two_overlapping_boxes_counts():
    assert choose(iou_threshold=0.5) == [1, 0, 1, 1, 1, 1]
    assert choose(iou_threshold=0.7) == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loss_type": "CLASSIFICATION"}, [1, 1, 0, 0, 0, 0]),
        ({"loss_type": "LOCALIZATION", "num_hard_examples": 1}, [0, 0, 0, 0, 1, 0]),
        ({"loss_type": "BOTH"}, [1, 0, 0, 0, 1, 0]),  # 6 + 0 and 2 + 10
        ({"loss_type": "BOTH", "box_weight": 0.1}, [1, 1, 0, 0, 0, 0]),  # 6, 5; the fifth 2 + 1
    ],
)
def test_the_highest_losses_count(settings, expected):
    assert choose(**{"iou_threshold": 1.0, "num_hard_examples": 2, **settings}) == expected


def test_negatives_are_limited_by_the_positives_and_an_ignored_anchor_stays_before_the_limit_is_passed():
    # By class loss: three negatives, the ignored one, the positive, a negative. One negative for the positive.
    settings = {"iou_threshold": 1.0, "loss_type": "CLASSIFICATION", "num_hard_examples": 0}
    assert choose(**settings, max_negatives_per_positive=1) == [1, 0, 0, 0, 1, 0]
    assert choose(**settings, max_negatives_per_positive=3) == [1, 1, 1, 1, 1, 0]
    assert choose(**settings, max_negatives_per_positive=4) == [1, 1, 1, 1, 1, 1]


def test_an_image_without_positives_keeps_the_minimum_of_negatives():
    settings = {"iou_threshold": 1.0, "loss_type": "CLASSIFICATION", "max_negatives_per_positive": 3}
    background = tf.fill([1, 6], -1)
    assert choose(background, **settings) == [0, 0, 0, 0, 0, 0]
    assert choose(background, **settings, min_negatives_per_image=2) == [1, 1, 0, 0, 0, 0]


def test_xla_chooses_the_same():
    settings = {"iou_threshold": 0.5, "num_hard_examples": 4, "max_negatives_per_positive": 2}
    compiled = tf.function(hard_examples, jit_compile=True)
    assert choose(**settings, choose_hard=compiled) == choose(**settings) == [1, 0, 1, 1, 1, 0]


def test_the_choice_has_no_gradient():
    class_loss = tf.Variable(CLASS_LOSS)
    with tf.GradientTape() as tape:
        chosen = hard_examples(HardExampleMiner(), BOXES, class_loss, BOX_LOSS, MATCH, class_weight=1, box_weight=1)
        total = tf.reduce_sum(class_loss * chosen)
    np.testing.assert_array_equal(tape.gradient(total, class_loss), np.ones([1, 6]))
