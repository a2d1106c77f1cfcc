import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny_detector
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from detloom.schemas.contracts.detections import (
    ASSET_CONTRACT,
    OUTPUT_NAMES,
    OUTPUTS,
    SIGNATURE_ENCODED,
    SIGNATURE_EXAMPLES,
)
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import decode_mask
from detloom.trainer_module.export.predict import (
    LoadedSignature,
    check_outputs,
    check_signature,
    find_saved_model,
    has_pixel_boxes,
    load_exported_detector,
    read_keypoints,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "export")


@pytest.fixture(scope="module")
def detector(model_dir):
    return load_exported_detector(model_dir)


def encode(image_rgb, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(image_rgb).save(file, kind)
    return file.getvalue()


def image_with_red_and_green(height=40, width=80):
    image = np.zeros((height, width, 3), np.uint8)
    image[10:20, 40:60] = (255, 0, 0)
    image[30:40, 0:20] = (0, 255, 0)
    return image


def predict_red_and_green(detector):
    (prediction,) = detector.predict_batch([encode(image_with_red_and_green())], ["image"])
    return prediction


def test_objects_are_found_with_names_and_relative_boxes(detector):
    found = predict_red_and_green(detector)
    assert found.class_names == ("red", "green")
    assert found.class_ids.tolist() == [1, 2]
    # Rows 10 to 20 of 40 and columns 40 to 60 of 80; rows 30 to 40 and columns 0 to 20.
    np.testing.assert_allclose(found.boxes_yxyx_rel, [[0.25, 0.5, 0.5, 0.75], [0.75, 0, 1, 0.25]])
    np.testing.assert_allclose(found.scores, [0.9, 0.8])
    above = found.above(0.85)
    assert (above.class_names, len(above.boxes_yxyx_rel), len(above.scores)) == (("red",), 1, 1)


def test_a_line_names_class_score_and_pixels(detector):
    assert predict_red_and_green(detector).lines() == [
        "red 0.900  left 40 top 10 right 60 bottom 20",
        "green 0.800  left 0 top 30 right 20 bottom 40",
    ]


def test_the_drawn_image_has_the_size_of_the_image_and_its_boxes(detector):
    found = predict_red_and_green(detector)
    image = found.draw()
    assert image.size == (80, 40)
    assert (np.asarray(image) != found.image_rgb).any()
    assert not (np.asarray(found.above(0.95).draw()) != found.image_rgb).any()


def test_images_of_different_sizes_are_predicted_in_order(detector):
    images = [encode(np.zeros((9, 21, 3), np.uint8), "JPEG"), encode(image_with_red_and_green())]
    assert [len(found.scores) for found in detector.predict_batch(images, ["b.jpg", "a.png"])] == [0, 2]


def test_a_broken_image_is_refused_by_name_and_does_not_affect_the_others(detector):
    images = [encode(image_with_red_and_green())[:60], encode(image_with_red_and_green())]
    error, found = detector.predict_batch(images, ["half.png", "whole.png"])
    assert isinstance(error, InputError)
    assert "half.png" in str(error)
    assert found.class_names == ("red", "green")


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_contract_that_is_no_json_object_is_refused(model_dir, tmp_path, content):
    shutil.copytree(model_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / ASSET_CONTRACT).write_text(content)
    with pytest.raises(InputError, match=ASSET_CONTRACT):
        has_pixel_boxes(str(tmp_path / "model"))


@pytest.mark.reliability("kill", "serve")
def test_the_highest_complete_version_or_the_model_of_an_artifact_is_taken(tmp_path):
    for folder in ("9", "10", "11", ".push-12", "model/Format-Serving"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("9", "10", "model/Format-Serving"):
        (tmp_path / folder / "saved_model.pb").touch()
    assert find_saved_model(tmp_path) == tmp_path / "10"
    assert find_saved_model(tmp_path / "model") == tmp_path / "model/Format-Serving"


def test_a_folder_without_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither saved_model\.pb"):
        load_exported_detector(tmp_path)
    with pytest.raises(InputError, match="nowhere: "):
        load_exported_detector(tmp_path / "nowhere")


@pytest.mark.reliability("torn file", "serve")
@pytest.mark.parametrize(
    ("damaged", "content", "message"),
    [
        ("saved_model.pb", b"\xff\xff\xff", r"saved_model\.pb: not a SavedModel"),
        ("variables/variables.index", None, "model: the SavedModel cannot be loaded"),
        ("variables/variables.index", b"x" * 100, r"cannot be loaded \(it has no index of a checkpoint"),
        ("assets/label_map.pbtxt", None, "label map cannot be read"),
    ],
)
def test_a_model_with_a_damaged_or_missing_file_is_refused(model_dir, tmp_path, damaged, content, message):
    shutil.copytree(model_dir, tmp_path / "model")
    (tmp_path / "model" / damaged).unlink()
    if content is not None:
        (tmp_path / "model" / damaged).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_exported_detector(tmp_path / "model")


def test_a_model_without_the_signature_is_refused(tmp_path):
    folder = tiny_detector.write_tiny_detector(tmp_path / "model", signatures=(SIGNATURE_ENCODED,))
    check_signature(str(folder), SIGNATURE_ENCODED)
    with pytest.raises(InputError, match=r"no signature 'serving_examples', only \['serving_encoded'\]"):
        check_signature(str(folder), SIGNATURE_EXAMPLES)


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


@pytest.mark.reliability("hostile input", "evaluate")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.outputs["detection_boxes"].tensor_shape.dim.pop(), "detection_boxes of type 1 with 2 dim"),
        (
            lambda found: setattr(found.outputs["detection_classes"], "dtype", 7),
            r"detection_classes .*not numbers \[B, M\]",
        ),
        (lambda found: setattr(found.inputs["image_bytes"], "dtype", 1), r"image_bytes .*not text \[B\]"),
        (lambda found: setattr(found.outputs["num_detections"], "dtype", 99), "num_detections of type 99"),
    ],
)
def test_a_signature_with_other_types_is_refused(model_dir, tmp_path, change, message):
    shutil.copytree(model_dir, tmp_path / "model")
    path = tmp_path / "model/saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(model.meta_graphs[0].signature_def[SIGNATURE_ENCODED])
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=message):
        check_signature(str(tmp_path / "model"), SIGNATURE_ENCODED)


def test_detections_that_are_not_finite_are_an_error_of_the_image(tmp_path):
    folder = tiny_detector.write_tiny_detector(tmp_path / "model", score_factor=float("nan"))
    error = predict_red_and_green(load_exported_detector(folder))
    assert isinstance(error, InputError)
    assert "image: the model returned detections that contain NaN" in str(error)


# --- masks and keypoints --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes_dir(tmp_path_factory):
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("shapes") / "export", has_shapes=True)


def test_masks_and_keypoints_follow_their_boxes(shapes_dir):
    """The red object is in rows 10 to 20 of 40 and columns 40 to 60 of 80; corners of the mask are at those of the box.

    Row y of the image is at y / 39, so the rows from 0.25 to 0.5 are 10 to 19; columns at x / 79, so 40 to 59.
    """
    found = predict_red_and_green(load_exported_detector(shapes_dir)).above(0.85)
    detections = found.found(image_id=3)
    assert detections.image_id == 3
    mask = np.zeros((40, 80))
    mask[10:20, 40:60] = 1
    np.testing.assert_array_equal(decode_mask(detections.mask_counts[0], (40, 80)), mask)
    np.testing.assert_allclose(detections.keypoints_yx_rel, [[[0.25, 0.5], [0.5, 0.75]]])
    np.testing.assert_allclose(detections.keypoint_scores, [[1, 1]])


def test_masks_are_drawn_and_keypoints_with_a_low_score_are_not(shapes_dir):
    """Keypoints of green objects have a score of 0: their dots, which reach outside of the box, are missing."""
    found = predict_red_and_green(load_exported_detector(shapes_dir))
    image = np.asarray(found.draw())
    assert tuple(image[15, 50]) != (255, 0, 0)
    plain = replace(found, rows={name: found.rows[name] for name in OUTPUT_NAMES if name in found.rows})
    differs = (image != np.asarray(plain.draw())).any(axis=-1)
    assert differs[8:10, 38:42].any()
    assert not differs[27:30].any()


def test_keypoints_of_a_model_with_pixels_become_relative(shapes_dir, tmp_path):
    shutil.copytree(shapes_dir, tmp_path / "model")
    contract = tmp_path / "model" / "assets" / ASSET_CONTRACT
    contract.write_text(contract.read_text().replace("relative", "pixels"))
    (rows,) = LoadedSignature(str(tmp_path / "model"), SIGNATURE_ENCODED)([encode(image_with_red_and_green())])
    np.testing.assert_allclose(rows["detection_keypoints"][0, 0], [0.25 / 40, 0.5 / 80])


def test_keypoints_are_read_from_the_contract(shapes_dir, model_dir, tmp_path):
    assert read_keypoints(str(shapes_dir)) == ("red", ("upper left", "lower right"), (0.05, 0.1))
    assert read_keypoints(str(model_dir)) is None
    shutil.copytree(shapes_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / ASSET_CONTRACT).write_text('{"keypoints": {"names": 3}}')
    with pytest.raises(InputError, match="the keypoints in its contract cannot be read"):
        read_keypoints(str(tmp_path / "model"))
