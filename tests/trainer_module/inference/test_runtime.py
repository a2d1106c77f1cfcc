import numpy as np
import pytest

from detloom.schemas.contracts.detections import OUTPUTS
from detloom.trainer_module.inference.runtime import check_outputs


def outputs_of(num_images=2, num_rows=3, **changed):
    shapes = {"detection_boxes": (num_rows, 4), "detection_scores": (num_rows,), "detection_classes": (num_rows,)}
    found = {name: np.zeros((num_images, *shape), np.float32) for name, shape in shapes.items()}
    return {**found, "num_detections": np.zeros(num_images), **changed}


@pytest.mark.reliability("hostile input", "evaluate")
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (outputs_of(1), r"detection_boxes as float32 \[1, 3, 4\], allowed: numbers \[2, M, 4\]"),
        (outputs_of(detection_scores=np.zeros((2, 4))), r"detection_scores as float64 \[2, 4\], .*\[2, 3\]"),
        (outputs_of(detection_boxes=np.zeros((2, 3))), "detection_boxes"),
        (outputs_of(detection_boxes=np.zeros((2, 3, 5))), "detection_boxes"),
        (outputs_of(detection_classes=np.full((2, 3), b"cat")), r"detection_classes as \|S3"),
        (outputs_of(num_detections=np.zeros(())), "num_detections"),
        (outputs_of(num_detections=np.array([0, 4])), r"num_detections \[0, 4\], allowed: 0 to 3"),
        (outputs_of(num_detections=np.array([0, -1])), "num_detections"),
        (outputs_of(num_detections=np.array([0, np.nan])), "num_detections"),
        (
            outputs_of(detection_keypoints=np.zeros((2, 3, 5, 2)), detection_keypoint_scores=np.zeros((2, 3, 4))),
            "score",
        ),
    ],
)
def test_outputs_of_other_shapes_types_or_numbers_are_refused(outputs, message):
    check_outputs(outputs_of(), OUTPUTS, {"B": 2})
    with pytest.raises(ValueError, match=message):
        check_outputs(outputs, OUTPUTS, {"B": 2})
