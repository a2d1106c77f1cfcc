import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.schemas.augmentation_config import RandomCropImage, RandomHorizontalFlip, RandomRotation90
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.network_config import KeepAspectRatioResizer
from detloom.trainer_module.example_parser import class_index_table, parse_example
from detloom.trainer_module.input_pipeline import (
    build_eval_dataset,
    build_train_dataset,
    keep_largest,
    list_shards,
    read_records,
)

LABEL_MAP = LabelMap(((1, "a"), (7, "b")))


@pytest.fixture(scope="module")
def config(tiny_config, changed):
    return changed(
        tiny_config,
        {
            "model.image_resizer.width": 96,
            "train.augmentations": (RandomHorizontalFlip(), RandomCropImage()),
            "train_input.max_number_of_boxes": 3,
        },
    )


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    box = (0.25, 0.25, 0.75, 0.75)
    first = [make_example([box], [1], name="one"), make_example([box, (0, 0, 0.5, 0.5)], [7, 1], name="two")]
    second = [make_example([], name="none"), make_example([box] * 5, [1] * 5, name="five", crowds=[1, 0, 0, 0, 0])]
    return [str(write_records(tmp_path / f"data-{i}", part)) for i, part in enumerate((first, second))]


def test_train_batches_have_static_shapes_and_padding(config, shards):
    batch = next(iter(build_train_dataset(config, LABEL_MAP, shards, batch_size=2)))
    assert batch["image"].shape == (2, 64, 96, 3)
    assert batch["boxes_yxyx_rel"].shape == (2, 3, 4)
    assert set(np.unique(batch["class_indices"])) <= {-1, 0, 1}
    assert -1 <= float(tf.reduce_min(batch["image"])) <= float(tf.reduce_max(batch["image"])) <= 1


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(config, changed, shards):
    def first_images(seed):
        batches = build_train_dataset(changed(config, {"train.seed": seed}), LABEL_MAP, shards, batch_size=2).take(3)
        return np.concatenate([batch["image"] for batch in batches])

    np.testing.assert_array_equal(first_images(1), first_images(1))
    assert not np.array_equal(first_images(1), first_images(2))


def test_pictures_that_are_turned_have_the_networks_size(config, changed, shards):
    turned = changed(config, {"train.augmentations": (RandomRotation90(probability=1.0),)})
    assert next(iter(build_train_dataset(turned, LABEL_MAP, shards, batch_size=2)))["image"].shape == (2, 64, 96, 3)


def test_padded_pictures_travel_with_their_true_size_and_boxes_relative_to_the_input(
    config, changed, tmp_path, make_example, write_records
):
    """48 x 96 pixels become 32 x 64 of 64 x 64: heights are halved in training, and as they are in evaluation."""
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    padded = changed(config, {"model.image_resizer": resizer, "train.augmentations": ()})
    example = make_example([(0.5, 0.25, 1.0, 0.75)], [1], image_hw=(48, 96))
    shards = [str(write_records(tmp_path / "data", [example]))]
    batch = next(iter(build_train_dataset(padded, LABEL_MAP, shards, batch_size=2)))
    assert (batch["image"].shape, batch["true_hw"].shape) == ((2, 64, 64, 3), (2, 2))
    np.testing.assert_array_equal(batch["true_hw"], [[32, 64]] * 2)
    np.testing.assert_allclose(batch["boxes_yxyx_rel"][:, 0], [[0.25, 0.25, 0.5, 0.75]] * 2)
    assert np.asarray(batch["image"])[:, :32].all()
    assert not np.asarray(batch["image"])[:, 32:].any()
    (batch,) = build_eval_dataset(padded, LABEL_MAP, shards, batch_size=2)
    np.testing.assert_array_equal(batch["true_hw"], [[32, 64]])
    np.testing.assert_allclose(batch["boxes_yxyx_rel"], [[[0.5, 0.25, 1.0, 0.75]]])


def boxes_and_dropped(config, shards, count):
    """Of each training picture in order: boxes left, boxes dropped. By its boxes a picture can be told from others."""
    batches = build_train_dataset(config, LABEL_MAP, shards, batch_size=1).take(count)
    return [(int(np.sum(np.asarray(b["class_indices"]) >= 0)), int(b["num_dropped"][0])) for b in batches]


def test_crowds_are_left_out_of_training_and_surplus_boxes_counted(config, changed, shards):
    seen = boxes_and_dropped(changed(config, {"train.augmentations": ()}), shards, 4)
    assert sorted(seen) == [(0, 0), (1, 0), (2, 0), (3, 1)]  # the last: five boxes, one a crowd, three kept


def test_without_shuffling_examples_come_in_the_same_order_again_and_again(config, changed, shards):
    ordered = changed(config, {"train.augmentations": (), "train_input.shuffle": False})
    # the shards are read in turn: one, none, two, five
    assert boxes_and_dropped(ordered, shards, 8) == [(1, 0), (0, 0), (2, 0), (3, 1)] * 2


def test_every_nth_example_is_read_and_always_the_same(config, changed, shards):
    sampled = changed(config, {"train.augmentations": (), "train_input.sample_1_of_n_examples": 3})
    assert set(boxes_and_dropped(sampled, shards, 12)) == {(1, 0), (3, 1)}  # the first and the fourth


def test_a_small_shuffle_buffer_mixes_less(config, changed, shards):
    unmixed = changed(config, {"train.augmentations": (), "train_input.shuffle_buffer_size": 1})
    assert boxes_and_dropped(unmixed, shards, 4) == [(1, 0), (0, 0), (2, 0), (3, 1)]


def test_the_largest_boxes_are_kept():
    boxes = tf.constant([[0, 0, 0.1, 0.1], [0, 0, 0.9, 0.9], [0, 0, 0.5, 0.5]], tf.float32)
    sample = {
        "class_indices": tf.constant([4, 5, 6]),
        "boxes_yxyx_rel": boxes,
        "area_px": tf.constant([1.0, 81.0, 25.0]),
    }
    kept, class_indices, num_dropped = keep_largest(sample, 2)
    np.testing.assert_array_equal(class_indices, [5, 6])
    np.testing.assert_array_equal(kept, tf.gather(boxes, [1, 2]))
    assert int(num_dropped) == 1


def test_evaluation_reads_every_nth_example_too(config, changed, shards):
    sampled = changed(config, {"eval_input.sample_1_of_n_examples": 2})
    (batch,) = build_eval_dataset(sampled, LABEL_MAP, shards, batch_size=8)
    assert np.sum(np.asarray(batch["class_indices"]) >= 0, axis=1).tolist() == [1, 2]


def test_the_eval_dataset_keeps_order_crowds_and_original_size(config, shards):
    batches = list(build_eval_dataset(config, LABEL_MAP, shards, batch_size=3))
    assert [len(batch["image"]) for batch in batches] == [3, 1]
    np.testing.assert_array_equal(batches[0]["image_hw"][0], [64, 64])
    crowds = np.concatenate([np.asarray(batch["is_crowd"]).sum(axis=1) for batch in batches])
    assert sorted(crowds) == [0, 0, 0, 1]


def test_missing_area_is_the_area_of_the_box(make_example):
    sample = parse_example(
        tf.constant(make_example([(0.0, 0.0, 0.5, 0.25)], image_hw=(64, 80))), class_index_table((1,))
    )
    np.testing.assert_allclose(sample["area_px"], [32 * 20])


def test_an_example_with_only_boxes_and_classes_is_enough(make_example):
    example = tf.train.Example.FromString(make_example([(0.0, 0.0, 0.5, 0.25)]))
    for key in (keys.IS_CROWD, keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH, keys.IMAGE_SOURCE_ID):
        del example.features.feature[key]
    sample = parse_example(tf.constant(example.SerializeToString()), class_index_table((1,)))
    np.testing.assert_array_equal(sample["is_crowd"], [False])


def test_a_class_outside_the_label_map_is_refused_with_its_record(make_example):
    example = tf.constant(make_example([(0, 0, 1, 1)], [5], name="img_7"))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"a class id that the label map lacks[\s\S]*img_7[\s\S]*5"
    ):
        parse_example(example, class_index_table(LABEL_MAP.class_ids))


@pytest.mark.parametrize("key", [keys.IS_CROWD, keys.AREA, keys.BOX_YMAX])
def test_box_features_of_different_lengths_are_refused_with_their_record(make_example, key):
    example = tf.train.Example.FromString(make_example([(0, 0, 1, 1)], name="img_7"))
    feature = example.features.feature[key]
    (feature.int64_list.value if key == keys.IS_CROWD else feature.float_list.value).extend([1, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"box features of different lengths[\s\S]*img_7"):
        parse_example(tf.constant(example.SerializeToString()), class_index_table((1,)))


def test_compressed_shards_are_read(tmp_path, make_example):
    path = str(tmp_path / "data.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        writer.write(make_example([(0, 0, 1, 1)]))
    assert len(list(read_records([path]))) == 1


def test_a_pattern_without_files_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\*: no TFRecord file matches; is the split empty\?"):
        list_shards([str(tmp_path / "none*")])
