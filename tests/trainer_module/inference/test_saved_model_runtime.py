import io
import shutil

import numpy as np
import pytest
import tiny_detector
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from detloom import load_detector
from detloom.schemas.contracts.detections import ASSET_CONTRACT, SIGNATURE_ENCODED, SIGNATURE_EXAMPLES
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.saved_model_runtime import SavedModelRuntime, check_signature


def encode(image_rgb, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(image_rgb).save(file, kind)
    return file.getvalue()


def image_with_red_and_green(height=40, width=80):
    image = np.zeros((height, width, 3), np.uint8)
    image[10:20, 40:60] = (255, 0, 0)
    image[30:40, 0:20] = (0, 255, 0)
    return image


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
        load_detector(tmp_path / "model")


def test_a_model_without_the_signature_is_refused(tmp_path):
    folder = tiny_detector.write_tiny_detector(tmp_path / "model", signatures=(SIGNATURE_ENCODED,))
    check_signature(str(folder), SIGNATURE_ENCODED)
    with pytest.raises(InputError, match=r"no signature 'serving_examples', only \['serving_encoded'\]"):
        check_signature(str(folder), SIGNATURE_EXAMPLES)


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


def test_keypoints_of_a_model_with_pixels_become_relative(shapes_dir, tmp_path):
    shutil.copytree(shapes_dir, tmp_path / "model")
    contract = tmp_path / "model" / "assets" / ASSET_CONTRACT
    contract.write_text(contract.read_text().replace("relative", "pixels"))
    (rows,) = SavedModelRuntime(str(tmp_path / "model")).detect([EncodedImage(encode(image_with_red_and_green()))])
    np.testing.assert_allclose(rows["detection_keypoints"][0, 0], [0.25 / 40, 0.5 / 80])
