import dataclasses

import pytest

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.field_docs import class_doc, field_docs, nested_dataclasses
from detloom.schemas.model_config import SigmoidFocal, Ssd
from detloom.schemas.run_file import RunFile

CLASSES = [*dict.fromkeys([*nested_dataclasses(RunFile), *nested_dataclasses(TrainEvalConfig)])]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_and_field_says_what_it_does(cls):
    assert class_doc(cls)
    assert set(field_docs(cls)) == {field.name for field in dataclasses.fields(cls)}


def test_the_literal_under_a_field_is_its_doc():
    assert field_docs(SigmoidFocal)["gamma"] == "How much less an anchor that is already right counts."


def test_members_of_unions_are_found():
    assert {Ssd, SigmoidFocal} <= set(CLASSES)
