"""Lookup of detector families. Imports no TensorFlow."""

from typing import Any

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.config import Model
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.trainer_module.detectors.centernet.family import CenterNetFamily
from detloom.trainer_module.detectors.detector import Detector, Family
from detloom.trainer_module.detectors.faster_rcnn.family import FasterRcnnFamily
from detloom.trainer_module.detectors.one_stage.family import SsdFamily


def family_of(config: Model) -> Family[Any]:
    """Return the family of a configuration. This is the only place that distinguishes families."""
    match config:
        case Ssd():
            return SsdFamily(config)
        case CenterNet():
            return CenterNetFamily(config)
        case FasterRcnn():
            return FasterRcnnFamily(config)
    raise AssertionError(f"no such detector: {config}")


def build_detector(config: Model, label_map: LabelMap) -> Detector[Any]:
    """Build a detector with random weights.

    Raises:
        InputError: if the configuration has another number of classes than the label map.
    """
    if config.num_classes not in (None, label_map.num_classes):
        raise InputError(
            f"model.num_classes: got {config.num_classes}, the label map has {label_map.num_classes} classes; set "
            f"model.num_classes to {label_map.num_classes}, or remove it."
        )
    return family_of(config).build(label_map)
