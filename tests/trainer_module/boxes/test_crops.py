import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.boxes.crops import choose_levels, crop_features

HW = (64, 96)


@pytest.fixture(scope="module")
def boxes() -> np.ndarray:
    """Two images with five boxes each: random ones, the whole image, and padding."""
    random = np.random.default_rng(0)
    corners = np.sort(random.random((2, 5, 2, 2)), axis=2)
    boxes = np.float32(corners.reshape(2, 5, 4))
    boxes[:, 3], boxes[:, 4] = [0, 0, 1, 1], 0
    return boxes


def features(*sizes: tuple[int, int]) -> list[tf.Tensor]:
    random = np.random.default_rng(1)
    return [tf.constant(random.standard_normal((2, *size, 3)), tf.float32) for size in sizes]


def cropped_by_tensorflow(feature: tf.Tensor, boxes: np.ndarray, side: int) -> np.ndarray:
    images = np.repeat(np.arange(len(boxes), dtype=np.int32), boxes.shape[1])
    crops = tf.image.crop_and_resize(feature, boxes.reshape(-1, 4), images, [side, side])
    return crops.numpy().reshape(*boxes.shape[:2], side, side, -1)


@pytest.mark.parametrize("side", [1, 7])
def test_crops_of_one_map_equal_those_of_tensorflow(boxes, side):
    (feature,) = features((5, 8))
    crops = crop_features([feature], tf.constant(boxes), HW, side)
    np.testing.assert_allclose(crops, cropped_by_tensorflow(feature, boxes, side), atol=1e-5)


def test_each_box_is_cropped_from_its_level(boxes):
    maps = features((16, 24), (8, 12), (4, 6))
    crops = crop_features(maps, tf.constant(boxes), (448, 448), 3)
    levels = choose_levels(tf.constant(boxes), 3, (448, 448)).numpy()
    assert len(set(levels.ravel())) > 1
    for index, feature in enumerate(maps):
        wanted = cropped_by_tensorflow(feature, boxes, 3)
        np.testing.assert_allclose(crops.numpy()[levels == index], wanted[levels == index], atol=1e-5)


def test_a_box_of_224_pixels_has_the_last_map_but_one():
    # Of an image of 896 pixels: 1/4 of a side is 224 pixels, 1/8 one level finer, 1/2 and more the last one; the finest
    # of five levels has everything up to 55 pixels.
    sides = np.float32([0.25, 0.24, 0.125, 0.5, 1.0, 0.0624, 0.001, 0.0])
    boxes = np.stack([0 * sides, 0 * sides, sides, sides], axis=-1)[np.newaxis]
    assert choose_levels(tf.constant(boxes), 5, (896, 896)).numpy().tolist() == [[3, 2, 2, 4, 4, 0, 0, 0]]


def test_cells_outside_of_the_map_are_zero():
    (feature,) = features((4, 4))
    boxes = tf.constant([[[-1.0, 0.0, 0.0, 1.0]]] * 2)
    crops = crop_features([feature], boxes, HW, 4).numpy()
    assert (crops[:, 0, :3] == 0).all()  # rows -3, -2 and -1
    np.testing.assert_allclose(crops[:, 0, 3], feature[:, 0], atol=1e-6)


def test_the_gradient_reaches_the_features_only(boxes):
    (feature,) = features((5, 8))
    boxes = tf.constant(boxes)
    with tf.GradientTape() as tape:
        tape.watch([feature, boxes])
        total = tf.reduce_sum(crop_features([feature], boxes, HW, 3))
    by_feature, by_boxes = tape.gradient(total, [feature, boxes])
    # The weights of a sample's four cells add up to 1.
    assert tf.reduce_sum(by_feature).numpy() == pytest.approx(2 * 5 * 3 * 3 * 3, rel=1e-5)
    assert by_boxes is None


@pytest.mark.parametrize("sizes", [[(5, 8)], [(16, 24), (8, 12)]])
def test_crops_and_gradient_are_equal_under_xla(boxes, sizes):
    maps, boxes = features(*sizes), tf.constant(boxes * 1.5 - 0.25)  # some samples are outside of the maps
    weights = tf.random.stateless_normal((2, 5, 4, 4, 3), seed=[0, 0])

    def crops_and_gradient() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(maps)
            crops = crop_features(maps, boxes, HW, 4)
            total = tf.reduce_sum(crops * weights)
        return crops, tape.gradient(total, maps)

    plain, compiled = crops_and_gradient(), tf.function(crops_and_gradient, jit_compile=True)()
    for one, other in zip(tf.nest.flatten(plain), tf.nest.flatten(compiled), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_last_sample_is_kept_when_rounding_moves_it_out_of_the_map():
    # 0.7 + 6 * ((1 - 0.7) * 39 / 6) / 39 may exceed 1 by rounding, for which TensorFlow's operation returns 0.
    lows = np.linspace(0.01, 0.99, 50, dtype=np.float32)
    boxes = tf.constant(np.stack([lows, lows, 0 * lows + 1, 0 * lows + 1], axis=-1)[np.newaxis])
    crops = crop_features([tf.ones([1, 40, 40, 1])], boxes, HW, 7)
    np.testing.assert_allclose(crops, np.ones([1, 50, 7, 7, 1]), atol=1e-4)


def test_gradients_of_many_boxes_add_up_in_half_precision():
    """A running sum in bfloat16 stops at 256, because 257 is rounded to 256."""
    feature, boxes = tf.ones([1, 2, 2, 1], tf.bfloat16), tf.tile(tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), [1, 512, 1])
    with tf.GradientTape() as tape:
        tape.watch(feature)
        crops = crop_features([feature], boxes, HW, 2)
        total = tf.reduce_sum(tf.cast(crops, tf.float32))
    gradient = tape.gradient(total, feature)
    assert crops.dtype == gradient.dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(crops, tf.float32), np.ones(crops.shape))
    np.testing.assert_array_equal(tf.cast(gradient, tf.float32), np.full([1, 2, 2, 1], 512.0))  # one sample per corner


def test_crops_of_any_number_of_images_can_be_saved(boxes, tmp_path):
    (feature,) = features((5, 8))
    module = tf.Module()
    specs = [tf.TensorSpec([None, 5, 8, 3]), tf.TensorSpec([None, 5, 4])]
    module.crop = tf.function(lambda maps, boxes: crop_features([maps], boxes, HW, 2), input_signature=specs)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    expected = crop_features([feature], tf.constant(boxes), HW, 2)
    np.testing.assert_allclose(loaded.crop(feature, boxes), expected, atol=1e-5)
