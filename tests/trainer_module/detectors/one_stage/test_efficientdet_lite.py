"""Small EfficientDet-Lites whose feature maps have odd sides."""

import numpy as np
import pytest
import tensorflow as tf
from training_parts import small_efficientdet

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.export_and_quantization import Export
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.detectors.one_stage.network import normalize
from detloom.trainer_module.export.tflite_export import export_tflite
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.tflite_runtime import TfliteRuntime

LABEL_MAP = LabelMap.from_names(["cat", "dog"])


@pytest.fixture(scope="module")
def config():
    return small_efficientdet("efficientdet_lite0", 96, 3, 6)  # 12, 6, 3 and 2 cells


@pytest.fixture(scope="module")
def detector(config, make_spread_detector):
    return make_spread_detector(config.model, LABEL_MAP)


@pytest.fixture(scope="module")
def examples(make_example):
    boxes = [(0.1, 0.1, 0.5, 0.6), (0.4, 0.3, 0.9, 0.9)]
    return [make_example(boxes, [1, 2], image_hw=hw, name=f"img_{hw[0]}") for hw in [(96, 96), (90, 130), (150, 70)]]


def test_pixels_have_the_units_of_google_automl():
    pixels = tf.constant([0.0, 127.0, 255.0])
    np.testing.assert_array_equal(normalize("efficientnet-lite2", pixels), [-127 / 128, 0, 1])


@pytest.mark.nightly
def test_a_step_in_low_precision_is_close_to_float32(assert_low_precision_is_close):
    model = small_efficientdet("efficientdet_lite0", 64, 3, 6).model
    assert_low_precision_is_close(model, bfloat16=(0.005, 0.5), float16=(0.001, 0.05))


@pytest.mark.nightly
def test_a_step_of_an_efficientdet_in_low_precision_is_close_to_float32(assert_low_precision_is_close):
    """With swish and weighted sums."""
    model = small_efficientdet("efficientdet_d0", 64, 3, 6).model
    assert_low_precision_is_close(model, bfloat16=(0.005, 0.15), float16=(0.001, 0.01))


@pytest.mark.nightly
def test_the_exported_graph_compiles_under_xla(make_spread_detector, assert_export_compiles):
    assert_export_compiles(make_spread_detector(small_efficientdet("efficientdet_lite0", 36, 2, 3).model, LABEL_MAP))


@pytest.mark.nightly
def test_float16_and_8_bit_files_find_what_the_model_in_memory_finds(
    detector, config, examples, tmp_path, write_records
):
    shard = write_records(tmp_path / "data_tfrecord-00000-of-00001", examples)
    settings = Export(tflite=("float16", "int8"), tflite_max_detections=10, tflite_calibration_images=3)
    export_tflite(detector, config, settings, [str(shard)], tmp_path / "lite")
    encoded = tf.train.Example.FromString(examples[0]).features.feature["image/encoded"].bytes_list.value[0]
    image, true_hw = family_of(config.model).preprocessing.prepare(tf.io.decode_image(encoded))
    found = detector.detect(image[tf.newaxis], true_hw[tf.newaxis])
    expected = np.sort(found[names.SCORES][0, :10])[::-1]
    for variant, tolerance in (("float16", 0.01), ("int8", 0.1)):
        lite = TfliteRuntime(str(tmp_path / f"lite/{variant}.tflite"))
        scores = lite.detect([EncodedImage(ExampleFeatures(examples[0]).image_bytes)])[0][names.SCORES]
        np.testing.assert_allclose(np.sort(scores)[::-1], expected, atol=tolerance)
    interpreter = tf.lite.Interpreter(str(tmp_path / "lite/int8.tflite"))
    interpreter.allocate_tensors()
    kinds = {each["dtype"] for each in interpreter.get_tensor_details() if "neck" in each["name"]}
    assert np.float32 not in kinds


def test_all_batch_norms_are_folded(detector, assert_folds):
    """Those of the heads too, whose levels share the convolutions."""
    assert_folds(detector)
