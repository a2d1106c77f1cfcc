import dataclasses
import inspect
import sys
from pathlib import Path

import pytest
import yaml

from detloom.pipelines.samples.sample_run_file import sample_run_file
from detloom.schemas.model.config import Train, TrainEvalConfig
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.losses import SigmoidFocal
from detloom.schemas.reading.field_docs import class_doc, field_docs
from detloom.schemas.reading.typed_dict import nested_dataclasses
from detloom.schemas.run_file.json_schema import run_file_schema
from detloom.schemas.run_file.run_file import RunFile

SMALL = {
    "name": "cats",
    "data": {"format": "voc", "path": "photos", "splits": {"train": "a", "eval": "b", "test": "c"}},
}


@pytest.fixture(scope="module")
def validator():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "rfc3987_syntax", None)  # its grammars of formats take seconds to build
        import jsonschema

    schema = run_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["demo", "bccd"])
def test_samples_follow_the_schema(validator, name):
    assert list(validator.iter_errors(yaml.safe_load(sample_run_file(name).read_text()))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"batch_size": 8}},
        {"train": {"optimizer": {"momentum": 0.5}}},
        {"detector": "efficientdet_d0"},
        {"model": {"loss": {"classification_loss": {"type": "SigmoidFocal", "alpha": None}}}},
    ],
)
def test_detector_sections_may_be_partial(validator, change):
    assert list(validator.iter_errors({**SMALL, **change})) == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"nmae": "x"},
        {"train": {"batchsize": 8}},
        {"train": {"optimizer": {"type": "Momentun"}}},
        {"train": {"augmentations": [{"probability": 1}]}},
        {"data": {"format": "voc", "splits": {"train": "a", "eval": "b", "test": "c"}}},
        {"eval": {"metrics_set": ["pascal_voc"]}},
    ],
)
def test_invalid_run_file_violates_the_schema(validator, change):
    assert list(validator.iter_errors({**SMALL, **change}))


def test_schema_has_descriptions_and_defaults():
    field = run_file_schema()["$defs"]["TrainOverride"]["properties"]["batch_size"]
    assert field["default"] == 32
    assert field["description"] == field_docs(Train)["batch_size"]


CLASSES = [*dict.fromkeys([*nested_dataclasses(RunFile), *nested_dataclasses(TrainEvalConfig)])]


def test_every_class_and_field_is_documented():
    for cls in CLASSES:
        assert class_doc(cls), cls
        assert set(field_docs(cls)) == {field.name for field in dataclasses.fields(cls)}, cls


def test_string_below_a_field_is_its_documentation():
    source = Path(inspect.getfile(SigmoidFocal)).read_text(encoding="utf-8")
    assert f'gamma: NotNegative = 2.0\n    """{field_docs(SigmoidFocal)["gamma"]}"""\n' in source


def test_members_of_unions_are_found():
    assert {Ssd, SigmoidFocal} <= set(CLASSES)
