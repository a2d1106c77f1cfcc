import io
import pickle
import struct

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image

from detloom.components.evaluator.image_record import decode_record, encode_record
from detloom.components.evaluator.inference import (
    DetectBatch,
    Matching,
    ModelFile,
    _check_shards,
    _read_records,
    parse_record,
    run_inference,
)
from detloom.components.evaluator.model_output_checks import find_unusable
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.matches import BY_CLASS, CLASS_AGNOSTIC, TRUE, match_boxes
from detloom.trainer_module.files.tfrecord import mask_checksum
from detloom.trainer_module.inference.runtime import FailedCallError

MATCHING = Matching(LabelMap.from_names(["red", "green"]), [(0.0, 900.0)])


def make_pipeline():
    return beam.Pipeline(runner="DirectRunner")


def make_threaded_pipeline():
    flags = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    return beam.Pipeline(runner="DirectRunner", argv=flags)


@pytest.fixture
def run(tmp_path, good_model_uri):
    def call(split_dir, batch_size=2, pipeline=make_pipeline, model_dir=None):
        step = DetectBatch({"candidate": ModelFile(str(model_dir or good_model_uri / "Format-Serving"))}, batch_size)
        return run_inference(pipeline, [f"{split_dir}/*"], step, str(tmp_path / "work"))

    return call


def test_a_shard_whose_record_states_a_huge_length_is_named(tmp_path):
    """TensorFlow's own reader ends the process."""
    length = struct.pack("<Q", 1 << 46)
    (tmp_path / "shard").write_bytes(length + struct.pack("<I", mask_checksum(length)))
    with pytest.raises(InputError, match="shard: the TFRecord file is damaged or truncated"):
        _check_shards([str(tmp_path / "*")])


def as_values(records):
    return [
        (
            source_id,
            truth.image_hw,
            found.boxes_yxyx_rel.tolist(),
            found.scores.tolist(),
            found.class_ids.tolist(),
        )
        for source_id, truth, found in zip(records.source_ids, records.truth, records.found["candidate"], strict=True)
    ]


@pytest.fixture(scope="module")
def records(tmp_path_factory, write_split, five_examples, good_model_uri, shifted_model_uri):
    """Records of one Beam run with two models over two shards in batches of two, of which one is not full."""
    folder = tmp_path_factory.mktemp("inference")
    uris = {"candidate": good_model_uri, "shifted": shifted_model_uri}
    files = {name: ModelFile(str(uri / "Format-Serving")) for name, uri in uris.items()}
    step = DetectBatch(files, 2, matching=MATCHING)
    found = run_inference(make_pipeline, [f"{write_split(folder, five_examples)}/*"], step, str(folder / "work"))
    assert not (folder / "work").exists()  # intermediate files are removed
    return found


@pytest.fixture(scope="module")
def detect(good_model_uri):
    """Run the DoFn on one batch of at most four without a pipeline."""
    step = DetectBatch({"candidate": ModelFile(str(good_model_uri / "Format-Serving"))}, 4)
    step.setup()

    def call(*examples):
        return [decode_record(row) for row in step.process([each.SerializeToString() for each in examples])]

    return call


def test_every_image_is_returned_once_with_truth_and_detections(records):
    assert records.source_ids == ["a", "b", "c", "d", "e"]
    assert [image.image_id for image in records.truth] == [1, 2, 3, 4, 5]
    assert [image.class_ids.tolist() for image in records.truth] == [[1], [1, 2], [], [2], [1, 2]]
    for truth, found in zip(records.truth, records.found["candidate"], strict=True):
        np.testing.assert_allclose(found.boxes_yxyx_rel, truth.boxes_yxyx_rel, atol=1e-6)
        np.testing.assert_array_equal(found.class_ids, truth.class_ids)
        scores = [{1: 0.9, 2: 0.8}[class_id] for class_id in found.class_ids.tolist()]
        assert found.scores.tolist() == pytest.approx(scores)


def test_workers_match_boxes_as_the_evaluator_would(records):
    found = records.take_matches("shifted")
    assert records.take_matches("shifted") == {}
    for prefix, class_ids, sizes in ((BY_CLASS, (1, 2), MATCHING.sizes), (CLASS_AGNOSTIC, None, ())):
        expected = match_boxes(records.truth, records.found["shifted"], class_ids, sizes)
        assert found[prefix].keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[prefix][name], values)
    assert found[BY_CLASS][TRUE].any()


def test_records_contain_no_image_bytes(detect, make_record):
    pixels = np.random.default_rng(0).integers(0, 256, (180, 200, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    encoded = file.getvalue()
    assert len(encoded) > 100_000  # 180 * 200 * 3 bytes of noise
    example = make_record("a", red=(10, 30, 50, 75), image_hw=(180, 200), **{keys.IMAGE_ENCODED: encoded})
    written = [encode_record(record) for record in detect(example)]
    assert all(encoded not in row for row in written)
    assert sum(map(len, written)) < 10_000  # no decoded pixels either


def test_results_do_not_depend_on_workers_shards_or_batch_size(records, run, write_split, five_examples, tmp_path):
    split = write_split(tmp_path / "three", five_examples, num_shards=3)
    assert as_values(run(split, batch_size=8, pipeline=make_threaded_pipeline)) == as_values(records)


@pytest.mark.nightly
def test_separate_worker_processes_give_the_same_records(
    records, run, portable_options, tmp_path, write_split, five_examples
):
    options = PipelineOptions(portable_options)
    there = run(write_split(tmp_path, five_examples), pipeline=lambda: beam.Pipeline(options=options))
    assert as_values(there) == as_values(records)


def test_the_dofn_can_be_pickled():
    step = pickle.loads(pickle.dumps(DetectBatch({"candidate": ModelFile("/model")}, 4)))
    assert step.files_by_name == {"candidate": ModelFile("/model")}


def test_a_split_without_files_or_examples_is_refused_with_its_path(run, tmp_path):
    (tmp_path / "Split-test").mkdir()
    with pytest.raises(InputError, match=r"Split-test: .*no files"):
        run(tmp_path / "Split-test")
    with pytest.raises(InputError, match=r"Split-test: .*no examples"):
        _read_records([], "Split-test")


def test_a_model_without_the_signature_is_refused_with_its_path(run, write_split, copy_model, five_examples, tmp_path):
    model_dir = copy_model(tmp_path / "model", without=(names.SIGNATURE_ENCODED,))
    with pytest.raises(InputError, match=r"model: .*'serving_encoded'"):
        run(write_split(tmp_path, five_examples), model_dir=model_dir)


@pytest.mark.reliability("torn file", "evaluate")
def test_a_broken_image_among_others_is_refused_with_its_record(detect, five_examples, make_record):
    broken = make_record("broken", **{keys.IMAGE_ENCODED: b"\x89PNG\r\n\x1a\nrubbish"})
    records = detect(*five_examples[:3], broken)
    assert [record.problem is None for record in records] == [True, True, True, False]
    with pytest.raises(InputError, match="Split-test: record 'broken' "):
        _read_records(records, "Split-test")


class FailsForOneHeight:
    def detect(self, images):
        if any(image.image_hw == (30, 40) for image in images):
            raise FailedCallError("no memory", is_refusal=False)
        return [{names.BOXES: np.ones((1, 4)), names.SCORES: np.ones(1), names.CLASSES: np.ones(1, int)}] * len(images)


@pytest.mark.reliability("hostile input", "evaluate")
def test_a_failure_of_a_model_that_is_not_judged_is_its_own(good_model_uri, make_record):
    step = DetectBatch({"candidate": ModelFile(str(good_model_uri / "Format-Serving"))}, 2, matching=MATCHING)
    step.setup()
    step._models.by_name["onnx"] = FailsForOneHeight()
    examples = [make_record("b", image_hw=(30, 40)), make_record("a")]
    records = [decode_record(row) for row in step.process([each.SerializeToString() for each in examples])]
    table = _read_records(records, "Split-test")
    assert [len(image.scores) for image in table.found["onnx"]] == [1, 0]
    assert find_unusable(table, "onnx", MATCHING.label_map) == "in record 'b' it failed (no memory)"
    assert find_unusable(table, "candidate", MATCHING.label_map) is None


def test_duplicate_record_names_are_refused(detect, make_record):
    (record,) = detect(make_record("x"))
    with pytest.raises(InputError, match="image/source_id 'x'"):
        _read_records([record, record], "Split-test")


def test_flags_and_areas_are_read(make_record):
    flags = {keys.DIFFICULT: [0, 1], keys.GROUP_OF: [1, 0], keys.IMAGE_CLASS_ID: [1, 2], keys.IS_CROWD: [0, 1]}
    example = make_record("x", red=(0, 0, 9, 9), green=(9, 9, 20, 20), **flags, **{keys.AREA: [5.0, 0.0]})
    truth = parse_record(example.SerializeToString()).ground_truth(4)
    assert (truth.is_difficult.tolist(), truth.is_group_of.tolist()) == ([False, True], [True, False])
    assert (truth.is_crowd.tolist(), truth.area_px.tolist()) == ([False, True], [5.0, 11.0 * 11.0])
    assert truth.verified_class_ids == (1, 2)


def test_only_named_features_and_finite_values_are_kept(make_record):
    values = {"camera": b"north", "span": 2**60 + 1, "lux": [1.5, float("nan")], "other": 3}
    serialized = make_record("x", **values).SerializeToString()
    features = parse_record(serialized, ["camera", "span", "lux", "gone"]).features
    assert features == {"camera": ("north",), "span": (2**60 + 1,), "lux": (1.5,)}


def test_without_a_source_id_the_file_name_is_used(make_record):
    example = make_record("", **{keys.IMAGE_FILENAME: b"cells/1.jpg"})
    assert parse_record(example.SerializeToString()).source_id == "cells/1.jpg"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({keys.IMAGE_SOURCE_ID: None}, "image/source_id"),
        ({keys.IMAGE_HEIGHT: None}, "image/height"),
        ({keys.IMAGE_WIDTH: 0}, "image/width"),
        ({keys.CLASS_ID: [1, 2]}, "2 class ids"),
        ({keys.AREA: [1.0, 2.0, 3.0]}, "1 class ids"),
        ({keys.AREA: [float("nan")]}, "image/object/area"),
    ],
)
def test_unusable_records_name_the_problem(make_record, changes, problem):
    example = make_record("x", red=(0, 0, 9, 9), **changes)
    assert problem in parse_record(example.SerializeToString()).problem


@pytest.mark.reliability("hostile input", "evaluate")
def test_bytes_that_are_not_an_example_are_a_problem():
    assert parse_record(b"\xff\xff\xff\xff").problem == "is not a tf.Example"
