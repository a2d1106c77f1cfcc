from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.ground_truth import TRAINING_COLUMNS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import MixUp, RandomHorizontalFlip
from detloom.schemas.model.crop_augmentations import RandomCropImage
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.trainer_module.data.input_pipeline import (
    AugmentationSeeds,
    build_eval_dataset,
    build_train_dataset,
    example_keys,
    keep_largest,
    per_replica_batch_size,
)
from detloom.trainer_module.detectors.families import family_of

LABEL_MAP = LabelMap(((1, "a"), (7, "b")))


@pytest.fixture(scope="module")
def config(tiny_config, changed):
    return changed(
        tiny_config,
        {
            "model.image_resizer.width": 96,
            "train.augmentations": (),
            "train_input.max_number_of_boxes": 3,
        },
    )


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    box = (0.25, 0.25, 0.75, 0.75)
    first = [make_example([box], [1], name="one"), make_example([box, (0, 0, 0.5, 0.5)], [7, 1], name="two")]
    second = [make_example([], name="none"), make_example([box] * 5, [1] * 5, name="five", crowds=[1, 0, 0, 0, 0])]
    return [str(write_records(tmp_path / f"data-{i}", part)) for i, part in enumerate((first, second))]


def test_train_batches_have_static_shapes_and_padding_and_depend_on_the_seed(config, changed, shards):
    random = changed(config, {"train.augmentations": (RandomHorizontalFlip(), RandomCropImage())})
    batch, other = (
        next(iter(build_train_dataset(changed(random, {"train.seed": seed}), LABEL_MAP, shards, batch_size=2)))
        for seed in (1, 2)
    )
    assert batch["image"].shape == (2, 64, 96, 3)
    assert batch["boxes_yxyx_rel"].shape == (2, 3, 4)
    assert set(np.unique(batch["class_indices"])) <= {-1, 0, 1}
    assert batch["image"].dtype == tf.uint8
    assert not np.array_equal(batch["image"], other["image"])


def test_padded_images_have_their_true_size_and_boxes_relative_to_the_input(
    config, changed, tmp_path, make_example, write_records
):
    """48 x 96 pixels become 32 x 64 of 64 x 64: heights are halved in training, and as they are in evaluation."""
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    padded = changed(config, {"model.image_resizer": resizer})
    example = make_example([(0.5, 0.25, 1.0, 0.75)], [1], image_hw=(48, 96))
    shards = [str(write_records(tmp_path / "data", [example]))]
    batch = next(iter(build_train_dataset(padded, LABEL_MAP, shards, batch_size=2)))
    assert (batch["image"].shape, batch["true_hw"].shape) == ((2, 64, 64, 3), (2, 2))
    np.testing.assert_array_equal(batch["true_hw"], [[32, 64]] * 2)
    np.testing.assert_allclose(batch["boxes_yxyx_rel"][:, 0], [[0.25, 0.25, 0.5, 0.75]] * 2)
    images = family_of(padded.model).preprocessing.normalize_padded(batch["image"], batch["true_hw"]).numpy()
    assert images[:, :32].all()
    assert not images[:, 32:].any()
    (batch,) = build_eval_dataset(padded, LABEL_MAP, shards, batch_size=2)
    np.testing.assert_array_equal(batch["true_hw"], [[32, 64]])
    np.testing.assert_allclose(batch["boxes_yxyx_rel"][:, 0], [[0.5, 0.25, 1.0, 0.75]])


@pytest.mark.parametrize(
    ("image_type", "tolerance", "padding_value"),
    [("float32", 1e-6, ()), ("uint8", 0.501 / 127.5, (100.0, 0.0, 50.0))],
)
def test_normalized_training_images_equal_evaluation_images_up_to_their_rounding(
    config, changed, shards, image_type, tolerance, padding_value
):
    """Colors are in units of 127.5 (arXiv:1801.04381's input of -1 to 1); half a gray level is the largest error."""
    resizer = KeepAspectRatioResizer(
        min_dimension=50, max_dimension=70, pad_to_max_dimension=True, per_channel_pad_value=padding_value
    )
    settings = {
        "model.image_resizer": resizer,
        "train_input.shuffle": False,
        "train_input.image_type": image_type,
    }
    plain, preprocessing = changed(config, settings), family_of(changed(config, settings).model).preprocessing
    trained = next(iter(build_train_dataset(plain, LABEL_MAP, shards[:1], batch_size=2)))
    (evaluated,) = build_eval_dataset(plain, LABEL_MAP, shards[:1], batch_size=2)
    np.testing.assert_array_equal(trained["true_hw"], evaluated["true_hw"])
    normalized = preprocessing.normalize_padded(trained["image"], trained["true_hw"])
    assert normalized.dtype == tf.float32
    np.testing.assert_allclose(normalized, evaluated["image"], rtol=0, atol=tolerance)
    height = int(trained["true_hw"][0, 0])
    np.testing.assert_array_equal(normalized[:, height:], evaluated["image"][:, height:])


def boxes_and_dropped(config, shards, count):
    """Return (boxes kept, boxes dropped) of each training image, in order; images differ in their boxes."""
    batches = build_train_dataset(config, LABEL_MAP, shards, batch_size=1).take(count)
    return [(int(np.sum(np.asarray(b["class_indices"]) >= 0)), int(b["num_dropped"][0])) for b in batches]


def test_crowds_are_left_out_of_training_and_surplus_boxes_counted(config, changed, shards):
    seen = boxes_and_dropped(config, shards, 4)
    assert sorted(seen) == [(0, 0), (1, 0), (2, 0), (3, 1)]  # the last: five boxes, one a crowd, three kept


def test_every_nth_example_is_read_and_always_the_same(config, changed, shards):
    one_of = {"train_input.sample_1_of_n_examples": 3, "eval_input.sample_1_of_n_examples": 2}
    sampled = changed(config, one_of)
    assert set(boxes_and_dropped(sampled, shards, 12)) == {(1, 0), (3, 1)}  # the first and the fourth
    (batch,) = build_eval_dataset(sampled, LABEL_MAP, shards, batch_size=8)
    assert np.sum(np.asarray(batch["class_indices"]) >= 0, axis=1).tolist() == [1, 2]


def batches_from(config, shards, start_step, count, **context):
    input_context = tf.distribute.InputContext(**context) if context else None
    dataset = build_train_dataset(
        config, LABEL_MAP, shards, batch_size=2, input_context=input_context, start_step=start_step
    )
    return list(dataset.take(count).as_numpy_iterator())


def test_a_stream_that_starts_at_a_step_equals_the_rest_of_a_whole_stream(config, changed, shards):
    """Two images a step and four or more an epoch: steps 3 and 4 are in the second or third."""
    balanced = changed(config, {"train_input.class_balance": 0.9, "train.augmentations": (RandomHorizontalFlip(),)})
    whole = batches_from(balanced, shards, 0, 5)
    for expected, batch in zip(whole[3:], batches_from(balanced, shards, 3, 2), strict=True):
        assert set(expected) == set(batch)
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])


def test_a_step_of_several_batches_and_workers_starts_with_its_images(config, changed, shards):
    """Eight images a step: each of two pipelines has two batches of two."""
    larger = changed(config, {"train.batch_size": 8})
    second = {"num_input_pipelines": 2, "input_pipeline_id": 1, "num_replicas_in_sync": 2}
    whole = batches_from(larger, shards, 0, 3, **second)
    np.testing.assert_array_equal(batches_from(larger, shards, 1, 1, **second)[0]["image"], whole[2]["image"])


def test_random_changes_of_an_image_differ_by_epoch_and_pipeline(config, changed):
    random = changed(config, {"train.augmentations": (RandomHorizontalFlip(), RandomCropImage())})
    seeds = [
        AugmentationSeeds(random, pipeline).of_element(tf.constant(number, tf.int64))
        for pipeline in (0, 1)
        for number in (0, 1)
    ]
    assert len({tuple(np.asarray(seed)) for of_element in seeds for seed in of_element}) == 4 * 2


@pytest.mark.slow  # large graphs
def test_images_are_mixed_until_the_last_steps(config, changed, shards, caplog):
    """The last 2 of 6 steps are not mixed: their images equal those without mixing."""
    unrounded = changed(config, {"train_input.image_type": "float32"})  # a mixed image can round to the same
    plain = changed(unrounded, {"train.augmentations": (RandomHorizontalFlip(),)})
    settings = {"train.augmentations": (RandomHorizontalFlip(), MixUp()), "train.last_steps_without_mixing": 2}
    mixed, unmixed = (batches_from(each, shards, 0, 6) for each in (changed(unrounded, settings), plain))
    equal = [np.array_equal(a["image"], b["image"]) for a, b in zip(mixed, unmixed, strict=True)]
    assert equal == [False] * 4 + [True] * 2
    (resumed,) = batches_from(changed(unrounded, settings), shards, 3, 1)
    np.testing.assert_array_equal(resumed["image"], mixed[3]["image"])
    assert set(mixed[0]) == {*unmixed[0], "image_shares"}
    assert "MixUp" not in caplog.text


def test_a_batch_of_one_image_cannot_be_mixed_and_a_warning_is_logged(config, changed, shards, caplog):
    mixed = changed(config, {"train.augmentations": (MixUp(),)})
    build_train_dataset(mixed, LABEL_MAP, shards, batch_size=1)
    assert "MixUp" in caplog.text


def test_the_named_records_are_those_of_the_batch(config, changed, shards):
    num_boxes = {"one": 1, "none": 0, "two": 2, "five": 3}
    for step, batch in enumerate(batches_from(config, shards, 0, 2)):
        named = [num_boxes[key] for key in example_keys(config, LABEL_MAP, shards, step=step)]
        assert np.sum(batch["class_indices"] >= 0, axis=1).tolist() == named
    ordered = changed(config, {"train_input.shuffle": False})
    assert example_keys(ordered, LABEL_MAP, shards, step=3) == ["two", "five"]
    assert example_keys(ordered, LABEL_MAP, shards, step=1, num_input_pipelines=2) == ["two", "five"]


def test_the_broken_records_of_a_step_are_named(config, changed, shards, make_example, write_records):
    broken = tf.train.Example.FromString(make_example([], name="broken"))
    image = broken.features.feature[keys.IMAGE_ENCODED].bytes_list
    image.value[:] = [image.value[0][:40]]
    unknown = make_example([(0.0, 0.0, 1.0, 1.0)], [5], name="unknown")
    write_records(Path(shards[1]), [broken.SerializeToString(), unknown])
    ordered = changed(config, {"train_input.shuffle": False})
    assert example_keys(ordered, LABEL_MAP, shards, step=0, only_broken=True) == ["broken"]
    assert example_keys(ordered, LABEL_MAP, shards, step=1, num_input_pipelines=2, only_broken=True) == ["unknown"]


def test_replicas_and_parts_of_a_step_share_the_batch(config, changed):
    assert per_replica_batch_size(changed(config, {"train.batch_size": 8}), 2) == 4
    in_parts = changed(config, {"train.batch_size": 8, "train.gradient_accumulation_steps": 2})
    assert per_replica_batch_size(in_parts, 2) == 4
    with pytest.raises(InputError, match=r"got 8 for 3 replicas and 2 parts per step, allowed: a multiple of 6"):
        per_replica_batch_size(in_parts, 3)


def test_the_largest_boxes_are_kept():
    boxes = tf.constant([[0, 0, 0.1, 0.1], [0, 0, 0.9, 0.9], [0, 0, 0.5, 0.5]], tf.float32)
    sample = {
        "class_indices": tf.constant([4, 5, 6]),
        "boxes_yxyx_rel": boxes,
        "area_px": tf.constant([1.0, 81.0, 25.0]),
        "box_weights": tf.constant([0.5, 1.0, 2.0]),
    }
    kept = keep_largest(sample, TRAINING_COLUMNS, 2)
    np.testing.assert_array_equal(kept["class_indices"], [5, 6])
    np.testing.assert_array_equal(kept["boxes_yxyx_rel"], tf.gather(boxes, [1, 2]))
    np.testing.assert_array_equal(kept["box_weights"], [1.0, 2.0])
    assert int(kept["num_dropped"]) == 1


def test_the_eval_dataset_keeps_order_crowds_and_original_size(config, shards):
    batches = list(build_eval_dataset(config, LABEL_MAP, shards, batch_size=3))
    assert [len(batch["image"]) for batch in batches] == [3, 1]
    np.testing.assert_array_equal(batches[0]["image_hw"][0], [64, 64])
    crowds = np.concatenate([np.asarray(batch["is_crowd"]).sum(axis=1) for batch in batches])
    assert sorted(crowds) == [0, 0, 0, 1]


def test_columns_of_the_eval_dataset_are_padded_to_multiples_of_64(config, tmp_path, make_example, write_records):
    counts = [0, 64, 65]
    examples = [make_example([(0, 0, 1, 1)] * count, [1] * count) for count in counts]
    dataset = build_eval_dataset(config, LABEL_MAP, [str(write_records(tmp_path / "data", examples))], batch_size=1)
    for batch, count, num_rows in zip(dataset, counts, [64, 64, 128], strict=True):
        assert batch["boxes_yxyx_rel"].shape == (1, num_rows, 4)
        assert int(tf.reduce_sum(batch["class_indices"])) == count - num_rows


def test_workers_get_the_batches_of_one_worker_in_turn(config, shards):
    def batches(**place):
        return list(build_eval_dataset(config, LABEL_MAP, shards, batch_size=1, **place))

    whole, parts = batches(), [batches(worker=worker, num_workers=2) for worker in range(2)]
    assert [len(part) for part in parts] == [2, 2]
    for number, expected in enumerate(whole):
        for name, value in parts[number % 2][number // 2].items():
            np.testing.assert_array_equal(value, expected[name])
