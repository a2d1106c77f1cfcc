import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.detectors.faster_rcnn.sampling import sample_balanced, take_first

RANDOM = tf.constant([[0.9, 0.1, 0.8, 0.2, 0.7, 0.3]])


def sample(candidates, positives, batch_size, fraction, *, jit: bool = False) -> list[int]:
    def chosen() -> tf.Tensor:
        return sample_balanced(
            tf.constant([candidates]) > 0,
            tf.constant([positives]) > 0,
            RANDOM,
            batch_size=batch_size,
            positive_fraction=fraction,
        )

    return np.flatnonzero(tf.function(chosen, jit_compile=jit)().numpy()[0]).tolist()


@pytest.mark.parametrize(
    ("candidates", "positives", "batch_size", "fraction", "chosen"),
    [
        # Half of 4 may be positive: rows 0 (0.9) and 2 (0.8) of 0, 1, 2; then the negatives 4 (0.7) and 5 (0.3).
        ([1] * 6, [1, 1, 1, 0, 0, 0], 4, 0.5, [0, 2, 4, 5]),
        ([1] * 6, [0, 1, 0, 0, 0, 0], 4, 0.5, [0, 1, 2, 4]),  # few positives leave room for negatives
        ([1] * 6, [1, 1, 1, 1, 1, 0], 4, 0.5, [0, 2, 5]),  # few negatives are not replaced by positives
        ([0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0], 4, 0.5, [1, 3]),
        ([1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], 2, 1.0, [0, 2]),
        ([1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], 2, 0.0, [3, 4]),  # 0.2 and 0.7 of rows 3 to 5 without row 5
        ([1] * 6, [1, 0, 1, 0, 1, 0], 99, 1.0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_positives_are_limited_and_negatives_fill_the_rest(candidates, positives, batch_size, fraction, chosen):
    assert sample(candidates, positives, batch_size, fraction) == chosen


def test_sampling_compiles_under_xla():
    assert sample([1] * 6, [1, 1, 1, 0, 0, 0], 4, 0.5, jit=True) == [0, 2, 4, 5]


def test_chosen_rows_move_to_the_front_in_order():
    values = tf.constant([[[1.0], [2.0], [3.0], [4.0]], [[5.0], [6.0], [7.0], [8.0]]])
    num, rows = take_first(tf.constant([[False, True, False, True], [True, True, True, True]]), 3, values)
    assert num.numpy().tolist() == [2, 3]
    assert rows[..., 0].numpy().tolist() == [[2, 4, 0], [5, 6, 7]]
