import json
import shutil
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from detloom.components.pusher.push import push_model
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export import saved_model as export
from detloom.trainer_module.export.fixed_size_model import check_fixed_size
from detloom.trainer_module.export.servable import detect_images
from detloom.trainer_module.export.serving_contract import format_contract
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.saved_model_runtime import SavedModelRuntime
from detloom.trainer_module.weights.restore import find_trained, plan_restore
from detloom.trainer_module.weights.variable_names import variables_by_path

LABEL_MAP = LabelMap(((2, "cat"), (5, "dog")))


@pytest.fixture(scope="module")
def detector(tiny_config):
    return build_detector(tiny_config.model, LABEL_MAP)


@pytest.fixture(scope="module")
def model_dir(detector, tiny_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    export.export_saved_model(detector, tiny_config, folder)
    return folder


@pytest.fixture(scope="module")
def loaded(model_dir):
    return tf.saved_model.load(str(model_dir))


def test_every_signature_accepts_any_batch_size(loaded, make_example):
    for batch_size in (1, 3):
        images = tf.zeros([batch_size, 50, 70, 3], tf.uint8)
        outputs = loaded.signatures[names.SIGNATURE_IMAGES](input_tensor=images)
        assert {key: value.shape for key, value in outputs.items()} == {
            names.BOXES: (batch_size, 10, 4),
            names.SCORES: (batch_size, 10),
            names.CLASSES: (batch_size, 10),
            names.NUM_DETECTIONS: (batch_size,),
        }
    examples = tf.constant([make_example([(0, 0, 1, 1)]), make_example([], image_hw=(30, 90))])
    classes = loaded.signatures[names.SIGNATURE_EXAMPLES](examples=examples)[names.CLASSES]
    assert set(np.unique(classes)) <= {0, 2, 5}


def test_the_signatures_share_one_network(model_dir, detector):
    """Each convolution is in the file once, not once for each signature."""
    spec = tf.TensorSpec([None, *detector.preprocessing.network_hw, 3])
    network = tf.function(detector.detect, autograph=False).get_concrete_function(spec).graph
    graph = saved_model_pb2.SavedModel.FromString((model_dir / names.SAVED_MODEL_FILE).read_bytes()).meta_graphs[0]
    saved = [node.op for function in graph.graph_def.library.function for node in function.node_def]
    for kind in ("Conv2D", "DepthwiseConv2dNative"):
        assert saved.count(kind) == [operation.type for operation in network.get_operations()].count(kind) > 0


@pytest.mark.slow
def test_boxes_of_a_padded_model_are_in_pixels_of_the_image_in_every_signature(tiny_config, changed, tmp_path):
    """Every box spans its input: of an image of 40 x 80 in 64 x 64 it covers all, in each signature."""
    resizer = KeepAspectRatioResizer(min_dimension=64, max_dimension=64, pad_to_max_dimension=True)
    config = changed(tiny_config, {"model.image_resizer": resizer})
    detector = build_detector(config.model, LABEL_MAP)
    bias = detector.network.get_layer("head_offsets").bias
    bias.assign(tf.tile([0.0, 0.0, 15.0, 15.0], [bias.shape[0] // 4]))  # heights and widths times e**3
    export.export_saved_model(detector, config, tmp_path / "model", Export(box_units="pixels"))
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 80, 3), np.uint8)
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for outputs in (
        loaded.signatures[names.SIGNATURE_IMAGES](input_tensor=tf.constant(images)),
        loaded.signatures[names.SIGNATURE_ENCODED](image_bytes=tf.constant(encoded)),
    ):
        boxes = outputs[names.BOXES].numpy()
        np.testing.assert_array_equal(boxes.max(axis=1), [[0, 0, 40, 80]] * 3)
    contract = json.loads((tmp_path / "model/assets" / names.ASSET_CONTRACT).read_text())
    assert "pixels of the image" in contract["outputs"][names.BOXES]["is"]
    for rows in SavedModelRuntime(str(tmp_path / "model")).detect(list(map(EncodedImage, encoded))):  # always relative
        np.testing.assert_allclose(rows[names.BOXES].max(axis=0), [0, 0, 1, 1], atol=1e-6)


def test_label_map_configuration_and_contract_are_in_the_assets(model_dir, tiny_config):
    assets = model_dir / "assets"
    assert read_label_map(assets / names.ASSET_LABEL_MAP) == LABEL_MAP
    assert from_json(TrainEvalConfig, (assets / names.ASSET_CONFIG).read_text()) == tiny_config
    contract = json.loads((assets / names.ASSET_CONTRACT).read_text())
    assert contract["signatures"]["serving_encoded"]["input"]["name"] == "image_bytes"
    assert contract["outputs"][names.BOXES]["shape"] == ["B", 10, 4]
    assert (contract["box_units"], contract["network_input"]["height"]) == ("relative", 64)
    assert contract["versions"]["tensorflow"] == tf.__version__


def test_tensorflow_serving_finds_a_warm_up_request_for_each_signature(model_dir, loaded):
    asked = []
    for record in tf.data.TFRecordDataset(str(model_dir / names.WARM_UP_FILE)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        signature = request.model_spec.signature_name
        inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
        assert loaded.signatures[signature](**inputs)[names.NUM_DETECTIONS].shape == (2,)
        asked.append(signature)
    assert asked == list(names.SIGNATURE_INPUTS)


@pytest.mark.slow
def test_training_can_start_from_an_exported_or_a_pushed_model(model_dir, detector, tiny_config, tmp_path):
    """The model is given by the folder of the SavedModel, by a pushed version, and by the folder of versions."""
    pushed = push_model(model_dir, tmp_path / "serving").path
    (tmp_path / "serving" / "1").mkdir()  # an older version, of which nothing is left
    expected = {path: variable.numpy() for path, variable in variables_by_path(detector.network).items()}
    shutil.copytree(model_dir, tmp_path / "model" / "Format-Serving")
    for where in (model_dir, pushed, tmp_path / "serving", tmp_path / "model", tmp_path / "model" / "Format-Serving"):
        train = replace(tiny_config.train, fine_tune_checkpoint=str(where))
        plan = plan_restore(train, detector, find_trained(train, detector))
        assert (plan.report.refusal, plan.report.mode, plan.report.unread) == ("", "full", ())
        assert plan.report.kind == "a detector of detloom"
        assert plan.arrays.keys() == expected.keys()
        for path, array in plan.arrays.items():
            np.testing.assert_array_equal(array, expected[path])


@pytest.fixture
def check_with_bias(model_dir, loaded, detector, monkeypatch):
    """Return a function that compares the written model with the one in memory after a change of its box offsets."""
    bias = detector.network.get_layer("head_offsets").bias
    before = bias.numpy()
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: loaded)

    def call(value):
        bias.assign(tf.fill(bias.shape, value))
        export._check_export(export.Servable(detector, Export()), model_dir, export._make_inputs((64, 64)))

    yield call
    bias.assign(before)


@pytest.mark.usefixtures("eager")
def test_an_export_that_differs_from_memory_is_refused_unless_outputs_are_not_finite(check_with_bias, caplog):
    """The boxes of the exported model are now elsewhere."""
    with pytest.raises(RuntimeError, match="signature serving_default"):
        check_with_bias(1.0)
    check_with_bias(np.inf)
    assert "not finite" in caplog.text


@pytest.mark.slow  # traces the function again
def test_an_export_is_not_compared_with_detections_that_depend_on_rounding(check_with_bias, caplog, monkeypatch):
    def from_images(servable, images):
        outputs = plain(servable, images)
        shift = 0.01 if tf.executing_eagerly() else 0.0  # else it is part of a graph, which is optimized differently
        return {**outputs, names.SCORES: outputs[names.SCORES] + shift}

    plain = export.Servable.from_images
    monkeypatch.setattr(export.Servable, "from_images", from_images)
    check_with_bias(1.0)
    assert "rounding changes the detections" in caplog.text


@pytest.mark.nightly  # another export
def test_a_model_that_detects_nothing_is_exported(tmp_path, tiny_config, changed):
    nms = "model.post_processing.batch_non_max_suppression"
    config = changed(tiny_config, {f"{nms}.score_threshold": 0.9999})
    detector = build_detector(config.model, LABEL_MAP)
    export.export_saved_model(detector, config, tmp_path / "model")
    assert (tmp_path / "model" / "saved_model.pb").is_file()


def test_an_export_that_fails_its_check_is_removed(tmp_path, detector, tiny_config, monkeypatch):
    def refuse(servable, model_dir, inputs):
        raise RuntimeError("differs")

    monkeypatch.setattr(export, "_check_export", refuse)
    monkeypatch.setattr(export.Servable, "signatures", lambda self: {})  # tracing them takes the most of an export
    with pytest.raises(RuntimeError, match="differs"):
        export.export_saved_model(detector, tiny_config, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_masks_and_keypoints_are_outputs_and_keypoints_have_the_unit_of_the_boxes(detector):
    """Images of 40 x 80 pixels; a point at 0.5, 0.25 is at 20, 20 pixels."""
    shapes = {
        names.MASKS: tf.ones([1, 10, 3, 5]),
        names.KEYPOINTS: tf.fill([1, 10, 2, 2], 0.5) * [1.0, 0.5],
        names.KEYPOINT_SCORES: tf.ones([1, 10, 2]),
    }
    boxes = {names.BOXES: tf.fill([1, 10, 4], 0.5)}

    class WithShapes(type(detector)):
        def detect(self, images, true_hw_B2):
            return {**boxes, **shapes}

    with_shapes = WithShapes(**{each.name: getattr(detector, each.name) for each in fields(detector)})
    images = tf.zeros([1, 40, 80, 3])
    assert set(detect_images(with_shapes, Export(), images)) == {names.BOXES, *shapes}
    in_pixels = detect_images(with_shapes, Export(box_units="pixels"), images)
    np.testing.assert_allclose(in_pixels[names.BOXES][0, 0], [20, 40, 20, 40])
    np.testing.assert_allclose(in_pixels[names.KEYPOINTS][0, 0], [[20, 20], [20, 20]])
    np.testing.assert_array_equal(in_pixels[names.MASKS], shapes[names.MASKS])
    again = export.Servable(detector, Export(box_units="pixels")).to_relative(in_pixels, (40, 80))
    np.testing.assert_allclose(again[names.KEYPOINTS], shapes[names.KEYPOINTS])


def test_the_contract_names_the_keypoints(detector):
    keypoints = Keypoints("cat", ("head", "tail"), (0.05, 0.1))
    outputs = (*names.OUTPUT_NAMES, names.KEYPOINTS)
    contract = format_contract(detector.preprocessing, outputs, 10, Export(), keypoints)
    assert contract["keypoints"] == {"class_name": "cat", "names": ["head", "tail"], "sigmas": [0.05, 0.1]}
    assert contract["outputs"][names.KEYPOINTS]["shape"] == ["B", 10, "P", 2]
    assert "keypoints" not in format_contract(detector.preprocessing, names.OUTPUT_NAMES, 10, Export())


def test_a_detector_with_masks_has_no_tflite_and_no_onnx_form(detector):
    family = SimpleNamespace(ground_truth_columns=("masks_GHW",))
    with pytest.raises(InputError, match=r"a detector with masks cannot be exported"):
        check_fixed_size(family)
    check_fixed_size(detector.family)
