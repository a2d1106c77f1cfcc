import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import MixUp, Mosaic
from detloom.trainer_module.data.augmentations.mixing import mix_batch, partners

SEED = tf.constant([1, 2], tf.int32)
WHOLE_QUARTERS = Mosaic(min_center=0.5, max_center=0.5, min_scale=0.5, max_scale=0.5)
BOX = (0.25, 0.25, 0.75, 0.75)


def make_batch(boxes, *, side=16, max_boxes=4, true_hw=None):
    """Image i is all 10 * (i + 1), its j-th box of class 10 * i + j."""
    count = len(boxes)
    boxes_BG4, classes = np.zeros((count, max_boxes, 4), np.float32), np.full((count, max_boxes), -1, np.int32)
    for i, rows in enumerate(boxes):
        boxes_BG4[i, : len(rows)] = np.array(rows, np.float32).reshape(-1, 4)
        classes[i, : len(rows)] = 10 * i + np.arange(len(rows))
    values = 10.0 * np.arange(1, count + 1, dtype=np.float32)
    return {
        "image": tf.constant(np.broadcast_to(values[:, None, None, None], (count, side, side, 3))),
        "true_hw": tf.constant(true_hw or [[side, side]] * count),
        "boxes_yxyx_rel": tf.constant(boxes_BG4),
        "class_indices": tf.constant(classes),
        "box_weights": tf.constant((classes >= 0).astype(np.float32)),
        "num_dropped": tf.zeros([count], tf.int32),
        "number": tf.range(count),
    }


def with_shares(batch, mixings):
    """Return the batch as it is before anything is mixed."""
    has_mixup = any(isinstance(mixing, MixUp) for mixing in mixings)
    return {**batch, "image_shares": tf.where(batch["class_indices"] >= 0, 1.0, 0.0)} if has_mixup else batch


def classes_of(batch, i):
    return sorted(int(each) for each in batch["class_indices"][i] if each >= 0)


def assert_equal(batch, other):
    assert set(batch) == set(other)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name])


def test_partners_are_other_images_and_equally_frequent():
    found = partners(tf.constant(8), 3, SEED).numpy()
    assert all(len({i, *row}) == 4 for i, row in enumerate(found))
    assert sorted(found.ravel()) == sorted(list(range(8)) * 3)


@pytest.mark.parametrize("mixings", [[], [Mosaic(probability=0.0)], [MixUp(probability=0.0)]], ids=str)
def test_nothing_is_mixed_without_a_mixing(mixings):
    batch = make_batch([[BOX]] * 4)
    assert_equal(mix_batch(mixings, batch, SEED, is_on=True), with_shares(batch, mixings))


@pytest.mark.parametrize("mixing", [Mosaic(), MixUp()], ids=str)
def test_a_batch_of_one_image_or_switched_off_is_unchanged(mixing):
    batch, one = make_batch([[BOX]] * 4), make_batch([[BOX]])
    assert_equal(mix_batch([mixing], batch, SEED, is_on=tf.constant(False)), with_shares(batch, [mixing]))
    assert_equal(mix_batch([mixing], one, SEED, is_on=tf.constant(True)), one)


def test_a_mosaic_of_whole_quarters_keeps_all_boxes_at_half_their_size():
    mixed = mix_batch([WHOLE_QUARTERS], make_batch([[BOX]] * 4), SEED, is_on=True)
    for i in range(4):
        assert classes_of(mixed, i) == [0, 10, 20, 30]
        # 0.25 and 0.75 of a quarter that begins at 0 or at 0.5
        corners = {tuple(row) for row in mixed["boxes_yxyx_rel"][i].numpy().tolist()}
        assert corners == {(y + 0.125, x + 0.125, y + 0.375, x + 0.375) for y in (0.0, 0.5) for x in (0.0, 0.5)}
        assert sorted(np.unique(mixed["image"][i])) == [10, 20, 30, 40]
    np.testing.assert_array_equal(mixed["number"], [0, 1, 2, 3])


def test_a_mosaic_shows_each_box_where_its_image_is():
    """Each box is painted with its class; after mixing it has to be on its own colour."""
    batch = make_batch([[(0.1, 0.2, 0.6, 0.9)], [BOX], [(0.0, 0.0, 1.0, 0.5)], [(0.5, 0.5, 1.0, 1.0)]], side=64)
    mixed = mix_batch([Mosaic(overlap_thresh=0.0)], batch, SEED, is_on=True)
    num_boxes = 0
    for i in range(4):
        for box, index in zip(mixed["boxes_yxyx_rel"][i].numpy(), mixed["class_indices"][i].numpy(), strict=True):
            if index >= 0:
                y, x = int(box[[0, 2]].mean() * 64), int(box[[1, 3]].mean() * 64)
                assert mixed["image"][i, y, x, 0] == 10 * (index // 10 + 1)
                num_boxes += 1
    assert num_boxes > 8


def test_padding_is_not_shown_in_a_mosaic():
    batch = make_batch([[BOX]] * 4, side=16, true_hw=[[16, 8]] * 4)
    image = batch["image"].numpy()
    image[:, :, 8:] = -1.0
    mixed = mix_batch([Mosaic()], {**batch, "image": tf.constant(image)}, SEED, is_on=True)
    assert float(tf.reduce_min(mixed["image"])) == 10
    np.testing.assert_array_equal(mixed["true_hw"], [[16, 16]] * 4)


def test_the_largest_of_too_many_boxes_are_kept_and_the_others_counted():
    boxes = [(0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.5, 0.5)]
    mixed = mix_batch([WHOLE_QUARTERS], make_batch([boxes] * 4, side=64), SEED, is_on=True)
    for i in range(4):
        assert classes_of(mixed, i) == [0, 10, 20, 30]  # the whole images; 4 of 8 have no room
        assert int(mixed["num_dropped"][i]) == 4


def test_a_box_is_kept_if_enough_of_it_and_two_pixels_are_left():
    tiny = (0.5, 0.5, 0.55, 0.55)  # 0.05 * 64 * 0.5 = 1.6 pixels
    mixed = mix_batch([WHOLE_QUARTERS], make_batch([[tiny]] * 4, side=64), SEED, is_on=True)
    assert all(classes_of(mixed, i) == [] for i in range(4))
    assert int(tf.reduce_sum(mixed["num_dropped"])) == 0  # nothing was left out for want of room
    cut = Mosaic(min_center=0.25, max_center=0.25, min_scale=1.0, max_scale=1.0, overlap_thresh=0.99)
    whole = mix_batch([cut], make_batch([[(0.0, 0.0, 1.0, 1.0)]] * 4, side=64), SEED, is_on=True)
    assert all(classes_of(whole, i) == [] for i in range(4))  # a quarter shows at most 9 / 16 of its image


def test_mixup_is_a_weighted_mean_and_boxes_have_the_share_of_their_image():
    mixed = mix_batch([MixUp()], make_batch([[BOX], [BOX, (0.0, 0.0, 1.0, 1.0)]]), SEED, is_on=True)
    for i in range(2):
        assert classes_of(mixed, i) == [0, 10, 11]
        shares = dict(zip(mixed["class_indices"][i].numpy().tolist(), mixed["image_shares"][i].numpy(), strict=True))
        assert shares[10] == shares[11]
        assert shares[0] + shares[10] == pytest.approx(1.0)
        np.testing.assert_allclose(mixed["image"][i], 10 * shares[0] + 20 * shares[10], rtol=1e-5)
        assert shares[-1] == 0


def test_mixup_keeps_the_weights_of_boxes_and_twice_multiplies_shares():
    batch = make_batch([[BOX], [BOX]])
    light = {**batch, "box_weights": batch["box_weights"] * 0.5}
    mixed = mix_batch([MixUp(), MixUp()], light, SEED, is_on=True)
    is_box = mixed["class_indices"].numpy() >= 0
    assert (mixed["box_weights"].numpy()[is_box] == 0.5).all()
    np.testing.assert_allclose(tf.reduce_sum(mixed["image_shares"], axis=1), [1.0, 1.0], rtol=1e-5)


def test_mixup_covers_the_larger_of_two_images():
    mixed = mix_batch([MixUp()], make_batch([[], []], true_hw=[[16, 8], [4, 16]]), SEED, is_on=True)
    np.testing.assert_array_equal(mixed["true_hw"], [[16, 16], [16, 16]])


@pytest.mark.slow  # a large graph
def test_in_tf_data_it_is_the_same_and_shapes_stay_known():
    mixings = [Mosaic(probability=0.5), MixUp()]
    batches = [make_batch(boxes, side=32) for boxes in ([[], [], []], [[BOX], [], []], [[BOX] * 4] * 3)]
    signature = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in batches[0].items()}
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    mapped = dataset.map(lambda batch: mix_batch(mixings, batch, SEED, is_on=True))
    assert mapped.element_spec == {**signature, "image_shares": signature["box_weights"]}
    for batch, in_dataset in zip(batches, mapped, strict=True):
        eager = mix_batch(mixings, batch, SEED, is_on=True)
        for name in eager:
            np.testing.assert_allclose(in_dataset[name], eager[name], rtol=1e-5, atol=1e-5)
        is_box, corners = eager["class_indices"].numpy() >= 0, eager["boxes_yxyx_rel"].numpy()
        assert ((corners >= 0) & (corners <= 1)).all()
        assert (corners[is_box][:, 2:] > corners[is_box][:, :2]).all()
        assert (eager["box_weights"].numpy()[~is_box] == 0).all()
        assert (eager["image_shares"].numpy()[~is_box] == 0).all()
