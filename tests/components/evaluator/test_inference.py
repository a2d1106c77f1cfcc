import io
import pickle

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that
from PIL import Image

from detloom.components.evaluator.inference import DetectBatch, parse_record, run_inference
from detloom.schemas import detections as names
from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError


def make_pipeline():
    return beam.Pipeline(runner="DirectRunner")


def make_threaded_pipeline():
    flags = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    return beam.Pipeline(runner="DirectRunner", argv=flags)


@pytest.fixture
def run(tmp_path, good_model_uri):
    def call(split_dir, batch_size=2, pipeline=make_pipeline, model_dir=None):
        paths = {"candidate": str(model_dir or good_model_uri / "Format-Serving")}
        return run_inference(pipeline, [f"{split_dir}/*"], paths, batch_size, str(tmp_path / "work"))

    return call


def as_values(records):
    return [
        (record.source_id, record.image_hw, *(values.tolist() for values in record.found["candidate"]))
        for record in records
    ]


def test_every_image_comes_back_once_sorted_with_truth_and_detections(run, write_split, five_examples, tmp_path):
    records = run(write_split(tmp_path, five_examples))
    assert [record.source_id for record in records] == ["a", "b", "c", "d", "e"]
    assert [record.class_ids.tolist() for record in records] == [[1], [1, 2], [], [2], [1, 2]]
    for record in records:
        boxes, scores, class_ids = record.found["candidate"]
        np.testing.assert_allclose(boxes, record.boxes_yxyx_rel, atol=1e-6)
        np.testing.assert_array_equal(class_ids, record.class_ids)
        assert scores.tolist() == pytest.approx([{1: 0.9, 2: 0.8}[class_id] for class_id in class_ids.tolist()])


def test_records_carry_no_image_bytes(run, write_split, make_picture, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (180, 200, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    encoded = file.getvalue()
    assert len(encoded) > 100_000  # 180 * 200 * 3 bytes of noise
    example = make_picture("a", red=(10, 30, 50, 75), image_hw=(180, 200), **{keys.IMAGE_ENCODED: encoded})
    (record,) = run(write_split(tmp_path, [example], num_shards=1))
    pickled = pickle.dumps(record)
    assert encoded not in pickled
    assert len(pickled) < 10_000  # neither are the decoded pixels


def test_results_do_not_depend_on_workers_shards_or_batch_size(run, write_split, five_examples, tmp_path):
    one = run(write_split(tmp_path / "one", five_examples, num_shards=1), batch_size=8)
    three = run(
        write_split(tmp_path / "three", five_examples, num_shards=3), batch_size=2, pipeline=make_threaded_pipeline
    )
    assert as_values(one) == as_values(three)


def test_intermediate_files_are_removed(run, write_split, five_examples, tmp_path):
    run(write_split(tmp_path, five_examples))
    assert not (tmp_path / "work").exists()


def test_a_batch_smaller_than_the_fixed_size_is_answered(good_model_uri, make_picture):
    batch = [[make_picture("x", red=(0, 0, 30, 40)).SerializeToString()]]
    step = DetectBatch({"candidate": str(good_model_uri / "Format-Serving")}, batch_size=4)

    def check(rows):
        (record,) = (pickle.loads(row) for row in rows)
        assert record.source_id == "x"
        assert record.found["candidate"][0].shape == (1, 4)

    with TestPipeline() as pipeline:
        assert_that(pipeline | beam.Create(batch) | beam.ParDo(step), check)


def test_the_dofn_can_be_pickled():
    step = pickle.loads(pickle.dumps(DetectBatch({"candidate": "/model"}, 4)))
    assert step._paths_by_name == {"candidate": "/model"}


def test_a_split_without_files_is_refused_by_path(run, tmp_path):
    (tmp_path / "Split-test").mkdir()
    with pytest.raises(InputError, match="Split-test: the split has no files"):
        run(tmp_path / "Split-test")


def test_a_split_without_examples_is_refused_by_path(run, write_split, tmp_path):
    with pytest.raises(InputError, match="Split-test: the split holds no examples"):
        run(write_split(tmp_path, []))


def test_a_model_without_the_signature_is_refused_by_path(
    run, write_split, write_tiny_detector, five_examples, tmp_path
):
    model_dir = write_tiny_detector(tmp_path / "model", signatures=(names.SIGNATURE_ENCODED,))
    with pytest.raises(InputError, match="model: the SavedModel has no signature 'serving_examples'"):
        run(write_split(tmp_path, five_examples), model_dir=model_dir)


def test_a_broken_image_among_others_is_refused_by_record(run, write_split, five_examples, make_picture, tmp_path):
    broken = make_picture("broken", **{keys.IMAGE_ENCODED: b"\x89PNG\r\n\x1a\nrubbish"})
    with pytest.raises(InputError, match="record 'broken' cannot be read by the model"):
        run(write_split(tmp_path, [*five_examples, broken], num_shards=1), batch_size=4)


def test_two_records_of_one_name_are_refused(run, write_split, make_picture, tmp_path):
    with pytest.raises(InputError, match="two records have the image/source_id 'x'"):
        run(write_split(tmp_path, [make_picture("x"), make_picture("x")]))


def test_crowds_and_areas_are_read(make_picture):
    example = make_picture(
        "x", red=(0, 0, 9, 9), green=(9, 9, 20, 20), **{keys.IS_CROWD: [0, 1], keys.AREA: [5.0, 6.0]}
    )
    record = parse_record(example.SerializeToString())
    assert record.is_crowd.tolist() == [False, True]
    assert record.area_px.tolist() == [5.0, 6.0]


def test_what_voc_and_open_images_treat_apart_is_read(make_picture):
    flags = {keys.DIFFICULT: [0, 1], keys.GROUP_OF: [1, 0], keys.IMAGE_CLASS_ID: [1, 2]}
    record = parse_record(make_picture("x", red=(0, 0, 9, 9), green=(9, 9, 20, 20), **flags).SerializeToString())
    truth = record.ground_truth(4)
    assert (truth.is_difficult.tolist(), truth.is_group_of.tolist()) == ([False, True], [True, False])
    assert truth.verified_class_ids == (1, 2)


def test_only_the_named_features_are_kept_and_what_is_not_finite_is_missing(make_picture):
    values = {"camera": b"north", "span": 2**60 + 1, "lux": [1.5, float("nan")], "other": 3}
    serialized = make_picture("x", **values).SerializeToString()
    features = parse_record(serialized, ["camera", "span", "lux", "gone"]).features
    assert features == {"camera": ("north",), "span": (2**60 + 1,), "lux": (1.5,)}


def test_without_a_source_id_the_file_name_is_taken(make_picture):
    example = make_picture("", **{keys.IMAGE_FILENAME: b"cells/1.jpg"})
    assert parse_record(example.SerializeToString()).source_id == "cells/1.jpg"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({keys.IMAGE_SOURCE_ID: None}, "has neither image/source_id nor image/filename"),
        ({keys.IMAGE_HEIGHT: None}, "lacks image/height or image/width"),
        ({keys.IMAGE_WIDTH: 0}, "lacks image/height or image/width"),
        ({keys.CLASS_ID: [1, 2]}, "has 2 class ids, and box features of other lengths"),
        ({keys.AREA: [1.0, 2.0, 3.0]}, "has 1 class ids, and box features of other lengths"),
        ({keys.AREA: [-1.0]}, "has a value in image/object/area that is no area"),
        ({keys.AREA: [float("nan")]}, "has a value in image/object/area that is no area"),
    ],
)
def test_unusable_records_say_what_they_lack(make_picture, changes, problem):
    example = make_picture("x", red=(0, 0, 9, 9), **changes)
    assert problem in parse_record(example.SerializeToString()).problem


def test_bytes_that_are_no_example_are_said_to_be_none():
    assert parse_record(b"\xff\xff\xff\xff").problem == "is not a tf.Example"
