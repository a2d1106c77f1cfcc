import jsonschema
import pytest
import yaml

from detloom.pipelines.run_local import sample_run_file
from detloom.schemas.json_schema import run_file_schema

SMALL = {
    "name": "cats",
    "data": {"format": "voc", "path": "photos", "splits": {"train": "a", "eval": "b", "test": "c"}},
}


@pytest.fixture(scope="module")
def validator():
    schema = run_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["demo", "bccd"])
def test_the_samples_follow_the_schema(validator, name):
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
def test_sections_of_the_detector_may_name_a_few_keys(validator, change):
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
def test_a_mistake_is_found(validator, change):
    assert list(validator.iter_errors({**SMALL, **change}))


def test_fields_carry_their_description_and_default():
    field = run_file_schema()["$defs"]["TrainOverride"]["properties"]["batch_size"]
    assert field["default"] == 32
    assert field["description"] == "Pictures in one step, over all replicas."
