import io
from dataclasses import replace

import numpy as np
import tiny_detector
from PIL import Image

from detloom.schemas.contracts.detections import CLASSES, OUTPUT_NAMES
from detloom.trainer_module.boxes.masks import decode_mask
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.prediction import Prediction
from detloom.trainer_module.inference.saved_model_runtime import SavedModelRuntime


def predict_red_and_green(model_dir):
    """Predict 40 x 80 pixels: red in rows 10 to 20, columns 40 to 60, and green in rows 30 to 40, columns 0 to 20."""
    image_rgb = np.zeros((40, 80, 3), np.uint8)
    image_rgb[10:20, 40:60] = (255, 0, 0)
    image_rgb[30:40, 0:20] = (0, 255, 0)
    file = io.BytesIO()
    Image.fromarray(image_rgb).save(file, "PNG")
    (rows,) = SavedModelRuntime(str(model_dir)).detect([EncodedImage(file.getvalue())])
    return Prediction(image_rgb, rows, tuple(map(tiny_detector.RED_GREEN.name_of, rows[CLASSES].tolist())))


def test_objects_are_found_with_names_and_relative_boxes(model_dir):
    found = predict_red_and_green(model_dir)
    assert found.class_names == ("red", "green")
    assert found.class_ids.tolist() == [1, 2]
    # Rows 10 to 20 of 40 and columns 40 to 60 of 80; rows 30 to 40 and columns 0 to 20.
    np.testing.assert_allclose(found.boxes_yxyx_rel, [[0.25, 0.5, 0.5, 0.75], [0.75, 0, 1, 0.25]])
    np.testing.assert_allclose(found.scores, [0.9, 0.8])
    above = found.above(0.85)
    assert (above.class_names, len(above.boxes_yxyx_rel), len(above.scores)) == (("red",), 1, 1)


def test_a_line_names_class_score_and_pixels(model_dir):
    assert predict_red_and_green(model_dir).lines() == [
        "red 0.900  left 40 top 10 right 60 bottom 20",
        "green 0.800  left 0 top 30 right 20 bottom 40",
    ]


def test_the_drawn_image_has_the_size_of_the_image_and_its_boxes(model_dir):
    found = predict_red_and_green(model_dir)
    image = found.draw()
    assert image.size == (80, 40)
    assert (np.asarray(image) != found.image_rgb).any()
    assert not (np.asarray(found.above(0.95).draw()) != found.image_rgb).any()


# --- masks and keypoints --------------------------------------------------------------------------------------------


def test_masks_and_keypoints_follow_their_boxes(shapes_dir):
    """The red object is in rows 10 to 20 of 40 and columns 40 to 60 of 80; corners of the mask are at those of the box.

    Row y of the image is at y / 39, so the rows from 0.25 to 0.5 are 10 to 19; columns at x / 79, so 40 to 59.
    """
    found = predict_red_and_green(shapes_dir).above(0.85)
    detections = found.found(image_id=3)
    assert detections.image_id == 3
    mask = np.zeros((40, 80))
    mask[10:20, 40:60] = 1
    np.testing.assert_array_equal(decode_mask(detections.mask_counts[0], (40, 80)), mask)
    np.testing.assert_allclose(detections.keypoints_yx_rel, [[[0.25, 0.5], [0.5, 0.75]]])
    np.testing.assert_allclose(detections.keypoint_scores, [[1, 1]])


def test_masks_are_drawn_and_keypoints_with_a_low_score_are_not(shapes_dir):
    """Keypoints of green objects have a score of 0: their dots, which reach outside of the box, are missing."""
    found = predict_red_and_green(shapes_dir)
    image = np.asarray(found.draw())
    assert tuple(image[15, 50]) != (255, 0, 0)
    plain = replace(found, rows={name: found.rows[name] for name in OUTPUT_NAMES if name in found.rows})
    differs = (image != np.asarray(plain.draw())).any(axis=-1)
    assert differs[8:10, 38:42].any()
    assert not differs[27:30].any()
