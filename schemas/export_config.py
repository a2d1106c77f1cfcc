"""What is written of a trained model."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.checks import check, check_fields
from detloom.schemas.errors import FieldError
from detloom.schemas.model_config import KeypointBoxCoder, Ssd


@dataclass(frozen=True, kw_only=True)
class Export:
    """What is written of a trained model: the SavedModel always, and what is named here beside it."""

    box_units: Literal["relative", "pixels"] = "relative"
    """Of the boxes that the SavedModel answers with: 0 to 1, or pixels of the picture that it was given."""
    tflite: tuple[Literal["float32", "float16", "int8"], ...] = ()
    """TensorFlow Lite variants; each is evaluated like the SavedModel, and `gates.max_int8_ap_drop` limits what int8
    may lose."""
    tflite_outputs: Literal["detections", "raw"] = "detections"
    """What a variant answers: detections, from an operation of TensorFlow Lite's own that suppresses doubles, or all
    boxes and scores, for whoever suppresses them himself."""
    tflite_max_detections: int = 100
    """Most detections that a variant answers with."""
    tflite_calibration_images: int = 100
    """Pictures of the training split that int8's ranges of numbers are measured on."""
    onnx: bool = False
    """An ONNX file, with all boxes and scores; needs `pip install detloom[onnx]`."""

    def __post_init__(self) -> None:
        check(len(set(self.tflite)) == len(self.tflite), "tflite", list(self.tflite), "each once")
        check_fields(self, "1 or more", "tflite_max_detections", "tflite_calibration_images")


def check_export(export: Export, model: Ssd | CenterNet) -> None:
    """Raise FieldError for formats that the detector cannot be converted to."""
    if export.onnx and isinstance(model, Ssd) and isinstance(model.box_coder, KeypointBoxCoder):
        _refuse("onnx", True, "a keypoint_box_coder was never converted; take another box_coder")
    if not export.tflite:
        return
    if isinstance(model, CenterNet):
        if "int8" in export.tflite:
            _refuse("tflite", "int8", "in 8 bits CenterNet's peaks are lost, such a file found nothing; take float16")
        if export.tflite_outputs == "raw":
            _refuse("tflite_outputs", "raw", "CenterNet has no suppression to leave out; take detections")
        return
    if isinstance(model.box_coder, KeypointBoxCoder):
        _refuse("tflite", list(export.tflite), "TensorFlow Lite's suppression cannot decode a keypoint_box_coder")
    if export.tflite_outputs == "detections" and model.post_processing.batch_non_max_suppression.iou_threshold <= 0:
        _refuse("tflite", list(export.tflite), "TensorFlow Lite's suppression needs an iou_threshold above 0")
    if export.tflite_outputs == "raw":
        if "int8" in export.tflite:
            _refuse("tflite_outputs", "raw", "decoded in 8 bits boxes are too coarse; with int8 take detections")
        if model.post_processing.batch_non_max_suppression.use_class_agnostic_nms:
            _refuse("tflite_outputs", "raw", "class-agnostic suppression is not measured so; take detections")


def _refuse(field: str, got: object, why: str) -> None:
    raise FieldError(f"export.{field}", f"got {got!r}, but {why}.")
