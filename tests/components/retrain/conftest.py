"""Fixtures with reports and records of small synthetic data."""

from collections.abc import Callable
from typing import Any

import pytest

from detloom.components.retrain.training_record import FinishedTraining, data_of_report


@pytest.fixture
def make_report() -> Callable[..., dict[str, Any]]:
    """Make the parts of a report.json that the decision reads."""

    def make(
        cats: int = 50, dogs: int = 50, num_images: int = 100, sizes: tuple[int, int] = (60, 40)
    ) -> dict[str, Any]:
        areas = {"bins": ["small", "large"], "counts": list(sizes), "unit": "share of the image"}
        train = {
            "num_examples": num_images,
            "boxes_by_class": {"cat": cats, "dog": dogs},
            "distributions": {"box_areas_rel": areas},
        }
        empty = {
            "num_examples": 7,
            "boxes_by_class": {},
            "distributions": {"box_areas_rel": {**areas, "counts": [0, 0]}},
        }
        return {"format": 2, "span": 12, "splits": {"train": train, "test": empty}}

    return make


@pytest.fixture
def make_training(make_report) -> Callable[..., FinishedTraining]:
    """Make the record of a training run of span 12 on 2026-03-01 with 100 images."""

    def make(**changes: Any) -> FinishedTraining:
        usual = {
            "time": "2026-03-01T03:05:12+00:00",
            "outcome": "blessed",
            "span": 12,
            "config_hash": '{"gates": "c0"}',
            **data_of_report(make_report(), "train"),
        }
        return FinishedTraining(**{**usual, **changes})

    return make
