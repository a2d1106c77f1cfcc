from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.data.sample import Sample


def _make_sample(boxes: Sequence[Sequence[float]], *, hw: tuple[int, int] = (40, 60), extras: bool = False) -> Sample:
    boxes_yxyx_rel = np.array(boxes, np.float32).reshape(-1, 4)
    image = np.random.default_rng(0).integers(0, 256, (*hw, 3), np.uint8)
    sides = boxes_yxyx_rel[:, 2:] - boxes_yxyx_rel[:, :2]
    count = len(boxes_yxyx_rel)
    sample = Sample(
        image=tf.constant(image),
        boxes_yxyx_rel=tf.constant(boxes_yxyx_rel),
        class_indices=tf.range(count),
        is_crowd=tf.zeros([count], tf.bool),
        area_px=tf.constant(sides.prod(axis=1) * hw[0] * hw[1], tf.float32),
        box_weights=tf.ones([count]),
    )
    if not extras:
        return sample
    masks = np.zeros((count, *hw), np.uint8)
    for mask, box in zip(masks, boxes_yxyx_rel, strict=True):
        ymin, xmin, ymax, xmax = np.rint(box * [*hw, *hw]).astype(int)
        mask[ymin:ymax, xmin:xmax] = 1
    points = boxes_yxyx_rel[:, np.newaxis, :2] + np.array([[0.25], [0.75], [np.nan]]) * sides[:, np.newaxis]
    return Sample(**sample, masks_GHW=tf.constant(masks), keypoints_yx_rel_GP2=tf.constant(points, tf.float32))


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    """`make_sample(boxes, hw=(40, 60), extras=False)`: an image of noise.

    With `extras` each mask fills its box, and of its three keypoints two lie on the box's diagonal, at a quarter and at
    three quarters; the last is unlabelled.
    """
    return _make_sample


@pytest.fixture
def numbered_sample() -> Sample:
    """The 8x4 image on which the literals were computed: rows of 1, 4, 7, 10 and 13, 16, 19, 22 and so on in red."""
    numbers = np.arange(32).reshape(8, 4)
    return Sample(
        image=tf.reshape(tf.range(1, 8 * 4 * 3 + 1, dtype=tf.float32), [8, 4, 3]),
        boxes_yxyx_rel=tf.constant([[0.25, 0.25, 0.75, 1.0], [0.0, 0.0, 0.125, 0.25]]),
        class_indices=tf.constant([1, 2]),
        is_crowd=tf.constant([False, False]),
        area_px=tf.constant([12.0, 1.0]),
        box_weights=tf.constant([1.0, 0.5]),
        masks_GHW=tf.constant(np.stack([numbers % 5 == 0, numbers < 2]).astype(np.uint8)),
        keypoints_yx_rel_GP2=tf.constant([[[0.5, 0.5], [0.25, 1.0]], [[0.0, 0.0], [np.nan, np.nan]]]),
    )


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | np.ndarray], None]:
    """`draws(0.75)`: from now on every random number is at this share of its range; whole numbers are rounded down."""

    def fix(shares: float | np.ndarray) -> None:
        def uniform(shape, seed, minval=0, maxval=1, dtype=tf.float32):
            number = minval + np.broadcast_to(np.float64(shares), shape) * (maxval - minval)
            return tf.cast(np.floor(number) if dtype.is_integer else number, dtype)

        monkeypatch.setattr(tf.random, "stateless_uniform", uniform)

    return fix
