"""Formats of the exported model, and the calibration of int8."""

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn

from detloom.schemas.errors import FieldError, PositiveInt, Ranged, check


@dataclass(frozen=True, kw_only=True)
class Export(Ranged):
    """Formats of the exported model. The SavedModel is always written; the formats below are optional."""

    box_units: Literal["relative", "pixels"] = "relative"
    """Units of the SavedModel's boxes: relative (0 to 1), or pixels of the input image."""
    tflite: tuple[Literal["float32", "float16", "int8"], ...] = ()
    """TensorFlow Lite variants; each is evaluated like the SavedModel, and `gates.max_int8_ap_drop` limits the loss of
    int8."""
    tflite_outputs: Literal["detections", "raw"] = "detections"
    """Outputs of a variant: `detections`, after TensorFlow Lite's NMS operation, or `raw`, all boxes and scores, if the
    caller runs NMS."""
    tflite_max_detections: Annotated[int, "1 to 10000"] = 100
    """Largest number of detections of a variant."""
    tflite_calibration_images: PositiveInt = 100
    """Number of training images that calibrate the value ranges of int8."""
    onnx: bool = False
    """Write `model.onnx` beside the SavedModel, for ONNX Runtime and OpenVINO (`docs/export.md`). It is evaluated like
    the SavedModel, and `gates.max_onnx_ap_difference` limits the difference."""
    onnx_outputs: Literal["detections", "raw"] = "detections"
    """Outputs of the ONNX file: those of the SavedModel, for images of any size, or `raw`, all boxes and scores for
    images of the network's size, which the pipeline does not evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(set(self.tflite)) == len(self.tflite), "tflite", list(self.tflite), "no duplicates")


def check_onnx_resizer(export: Export, resize_method: str) -> None:
    """Raise FieldError for a method whose pixels an ONNX file would not compute as training does."""
    if export.onnx and export.onnx_outputs == "detections" and resize_method in ("AREA", "BICUBIC"):
        why = (
            f"the runtimes of ONNX do not resize as resize_method: {resize_method}; use BILINEAR, or onnx_outputs: raw"
        )
        refuse_export("onnx", True, why)


def refuse_export(field: str, got: object, why: str) -> NoReturn:
    """Raise FieldError for a setting that a detector cannot be exported with."""
    raise FieldError(f"export.{field}", f"got {got!r}, but {why}.")
