"""The section `checks` of a run file: defaults and invalid values."""

import dataclasses

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.reading.yaml_file import parse_yaml
from detloom.schemas.run_file.data_checks import CHECK_NAMES, DataChecks


def read(text):
    data, locate = parse_yaml(text, "run.yaml")
    return from_dict(DataChecks, data, locate=locate)


def test_one_key_of_a_check_keeps_the_other():
    checks = read("near_duplicates: {severity: fail}")
    default = DataChecks().near_duplicates
    assert checks.near_duplicates == dataclasses.replace(default, severity="fail")
    assert dataclasses.replace(checks, near_duplicates=default) == DataChecks()
    boxes = read("boxes: {threshold: 0.01}").boxes
    assert (boxes.severity, boxes.threshold) == ("fail", 0.01)
    for off in ("off", "'off'"):  # YAML reads the first as false
        assert read(f"near_duplicates: {{severity: {off}}}").near_duplicates.severity == "off"


def test_every_check_has_a_severity_and_a_threshold():
    for name in CHECK_NAMES:
        check = getattr(DataChecks(), name)
        assert check.severity in ("off", "warn", "fail")
        assert isinstance(check.threshold, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("boxes: {threshold: 2}", r"run.yaml:1: boxes.threshold: got 2.0, allowed: 0 to 1"),
        ("examples_per_split: {threshold: -1}", "examples_per_split.threshold: got -1.0, allowed: 0 or more"),
        ("tiny_boxes: {min_side_px: -1}", "tiny_boxes.min_side_px: got -1.0, allowed: 0 or more"),
        ("huge_boxes: {max_area: 1.5}", "huge_boxes.max_area: got 1.5, allowed: 0 to 1"),
        ("overlapping_boxes: {min_iou: 0}", "overlapping_boxes.min_iou: got 0.0, allowed: above 0"),
        ("near_duplicates: {max_distance: 11}", "near_duplicates.max_distance: got 11, allowed: 0 to 10"),
        ("boxes: {severity: on}", r"boxes\.severity: got true, allowed: 'off', 'warn', 'fail'"),
        ("boxes: {severity: error}", "boxes.severity: got 'error', allowed"),
        ("boxs: {}", "boxs: unknown key.*Did you mean 'boxes'"),
        ("boxes: fail", "boxes: got 'fail', allowed: a mapping with keys severity, threshold"),
    ],
)
def test_invalid_check_is_rejected(text, message):
    with pytest.raises(InputError, match=message):
        read(text)
