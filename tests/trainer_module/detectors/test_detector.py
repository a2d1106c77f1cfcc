import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.families import build_detector

LABEL_MAP = LabelMap(((3, "cat"), (8, "dog")))


def test_a_number_of_classes_other_than_the_label_maps_is_refused(tiny_config, changed):
    with pytest.raises(
        InputError, match=r"model\.num_classes: got 90, the label map has 2 classes; set model\.num_classes to 2"
    ):
        build_detector(changed(tiny_config.model, {"num_classes": 90}), LABEL_MAP)
