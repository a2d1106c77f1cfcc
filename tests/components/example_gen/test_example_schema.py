"""The TFMD schema describes what ingestion writes: TFDV finds no anomaly in valid data, and finds invalid data."""

import io
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from PIL import Image
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

import detloom.schemas.contracts
from detloom.components.example_gen.build_example import BuiltExample, SourceImage, build_example
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord
from detloom.schemas.contracts import example_keys as keys


@pytest.fixture(scope="module")
def schema():
    (path,) = [
        path
        for folder in detloom.schemas.contracts.__path__
        if (path := Path(folder) / "example_schema.pbtxt").is_file()
    ]
    return text_format.Parse(path.read_text(), schema_pb2.Schema())


def make_examples(image: bytes):
    boxes = [(), ((1, 1, 9, 9),), ((1, 1, 9, 9), (0, 0, 60, 40), (5, 5, 20, 20))]
    examples = []
    for index, found in enumerate(boxes * 4):
        objects = tuple(SourceObject("cat", box) for box in found)
        record = SourceRecord("train", f"img_{index}", f"img_{index}.jpg", "train.json", None, objects)
        source = SourceImage(image, record.image_path)
        built = build_example(record, source, class_ids={"cat": 1}, params=ExampleGenParams(format="coco"))
        assert isinstance(built, BuiltExample)
        examples.append(built.example)
    return examples


def find_anomalies(schema, examples):
    options = tfdv.StatsOptions(feature_allowlist=list(keys.STATISTICS_KEYS))
    batch = ExamplesToRecordBatchDecoder().DecodeBatch(examples)
    statistics = stats_impl.generate_statistics_in_memory(batch, options)
    return {
        name: info.short_description for name, info in tfdv.validate_statistics(statistics, schema).anomaly_info.items()
    }


@pytest.fixture
def examples():
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40)).save(buffer, format="JPEG")
    return make_examples(buffer.getvalue())


def test_the_schema_has_the_keys_of_the_contract(schema):
    assert {feature.name for feature in schema.feature} == {keys.IMAGE_ENCODED, *keys.STATISTICS_KEYS}


def test_valid_examples_with_lists_of_different_lengths_have_no_anomalies(schema, examples):
    assert find_anomalies(schema, examples) == {}
    assert find_anomalies(schema, examples[::3]) == {}  # no box


def test_a_coordinate_above_one_and_a_missing_source_id_are_anomalies(schema, examples):
    bad = tf.train.Example.FromString(examples[1])
    bad.features.feature[keys.BOX_XMAX].float_list.value[0] = 1.5
    del bad.features.feature[keys.IMAGE_SOURCE_ID]
    found = find_anomalies(schema, [*examples, bad.SerializeToString()])
    assert sorted(found) == sorted([keys.BOX_XMAX, keys.IMAGE_SOURCE_ID])
