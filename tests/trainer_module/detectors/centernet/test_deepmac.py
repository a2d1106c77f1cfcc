"""A CenterNet with one small hourglass and masks."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS, OUTPUT_NAMES, SIGNATURE_IMAGES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.config import Eval, InputReader, Monitoring, Train, TrainEvalConfig
from detloom.schemas.model.deepmac import DeepMac
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.losses import WeightedSoftmax
from detloom.schemas.model.optimizers import AdamOptimizer, ConstantLearningRate
from detloom.schemas.odapi.pipeline_config import parse_pipeline_config
from detloom.trainer_module.detectors.centernet.deepmac import (
    build_mask_network,
    check_mask_classes,
    mask_hourglass,
    mask_loss,
    trained_mask_weights,
)
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export.saved_model import export_saved_model
from detloom.trainer_module.layers.backbones.hourglass import HOURGLASSES, Hourglass
from detloom.trainer_module.training.loop import train

pytestmark = pytest.mark.usefixtures("eager")
FIVE = LabelMap(((1, "a"), (2, "b"), (4, "c"), (7, "d"), (8, "e")))
# With fewer than 16 channels, oneDNN's gradient of a strided 1x1 convolution writes outside its memory (AVX-512).
SMALL = Hourglass(stem_channels=16, channels=(16, 16), num_blocks=(1, 1), num_stacked=2)
TINY = DeepMac(
    dim=3,
    pixel_embedding_dim=2,
    mask_size=8,
    network_type="hourglass10",
    num_init_channels=2,
    allowed_masked_classes_ids=(1, 7),
)


@pytest.fixture(scope="module")
def config(hourglass_config) -> CenterNet:
    return dataclasses.replace(hourglass_config, deepmac_mask_estimation=TINY)


@pytest.fixture(scope="module", autouse=True)
def _small_hourglass():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HOURGLASSES, "hourglass_104", SMALL)
        yield


@pytest.fixture(scope="module")
def detector(config) -> Detector:
    keras.utils.set_random_seed(0)
    return build_detector(config, FIVE)


def with_masks(detector: Detector, **settings) -> Detector:
    """Return the detector with other settings of its masks and a new mask network."""
    masks = dataclasses.replace(TINY, **settings)
    config = dataclasses.replace(detector.config, deepmac_mask_estimation=masks)
    family = dataclasses.replace(detector.family, config=config)
    return dataclasses.replace(detector, family=family, mask_network=build_mask_network(masks))


@pytest.fixture(scope="module")
def batch(center_net_truth) -> dict[str, tf.Tensor]:
    """The upper half of each image is the mask of every box."""
    truth = {key: tf.constant(value) for key, value in center_net_truth.items()}
    masks = np.zeros((*truth["class_indices"].shape, 128, 128), np.uint8)
    masks[:, :, :64] = 1
    images = np.random.default_rng(0).uniform(0, 255, (2, 128, 128, 3)).astype(np.float32)
    return {"image": tf.constant(images), "masks_GHW": tf.constant(masks), **truth}


@pytest.fixture(scope="module")
def trained(detector, batch) -> dict[str, tf.Tensor]:
    """Outputs in training mode."""
    return detector.forward(batch, training=True)


@pytest.fixture(scope="module")
def inferred(detector, batch, trained) -> dict[str, tf.Tensor]:
    """Outputs in inference mode, always after those in training mode, which change the moving statistics."""
    return detector.forward(batch, training=False)


def test_masks_of_each_hourglass_are_trained_unless_only_those_of_the_last_one(detector, batch, trained):
    num_boxes = batch["class_indices"].shape[1]
    for suffix in ("", "_hourglass1"):
        assert trained[f"mask_logits_BGss{suffix}"].shape == (2, num_boxes, 8, 8)
    assert with_masks(detector)._mask_suffixes == ("_hourglass1", "")
    assert with_masks(detector, use_only_last_stage=True)._mask_suffixes == ("",)


def test_losses_of_parts_add_up_in_both_modes(detector, batch, trained, inferred, assert_losses_of_halves_add_up):
    for outputs in (trained, inferred):
        assert_losses_of_halves_add_up(detector, outputs, batch)


@pytest.mark.nightly
def test_a_step_in_low_precision_is_close_to_float32(config, assert_low_precision_is_close):
    model = dataclasses.replace(
        config,
        feature_extractor=dataclasses.replace(config.feature_extractor, backbone="hourglass_10"),
        image_resizer=dataclasses.replace(config.image_resizer, min_dimension=64, max_dimension=64),
        deepmac_mask_estimation=dataclasses.replace(TINY, allowed_masked_classes_ids=()),
    )
    assert_low_precision_is_close(model, bfloat16=(0.01, 0.12), float16=(0.001, 0.03))


def test_only_masks_of_the_allowed_classes_are_trained():
    """They are chosen by ids of the label map: 1 and 7 are the indices 0 and 3."""
    indices, weights = tf.constant([[0, 1, 3, 3, -1]]), tf.constant([[1.0, 1.0, 0.5, 0.0, 1.0]])
    assert trained_mask_weights(TINY, FIVE, indices, weights).numpy().tolist() == [[1, 0, 0.5, 0, 0]]
    every = dataclasses.replace(TINY, allowed_masked_classes_ids=())
    assert trained_mask_weights(every, FIVE, indices, weights).numpy().tolist() == [[1, 1, 0.5, 0, 0]]


def test_the_loss_is_the_mean_cross_entropy_of_the_part_of_the_mask_in_the_box():
    masks = np.zeros((1, 2, 9, 9), np.uint8)
    masks[0, 1, :5] = 1  # of the second box; the box covers rows 4 to 8 of the cells
    logits = np.full((1, 2, 5, 5), 2.0, np.float32)
    boxes = tf.constant([[[0, 0, 1, 1], [0.5, 0, 1, 1]]], tf.float32)
    loss = mask_loss(tf.constant(logits), tf.constant(masks), boxes, tf.constant([[0.0, 3.0]]))
    object_loss, other_loss = np.log1p(np.exp(-2.0)), np.log1p(np.exp(2.0))
    assert float(loss) == pytest.approx(3 * (5 * object_loss + 20 * other_loss) / 25, rel=1e-6)


def test_detections_have_the_mask_in_their_box(detector, batch, inferred):
    outputs = inferred
    found = detector.detections(outputs, batch["true_hw"])
    assert set(found) == {*OUTPUT_NAMES, MASKS}
    is_row = found[CLASSES].numpy() > 0
    share = np.tile(batch["true_hw"].numpy() / 128, 2)[:, np.newaxis]
    boxes = tf.constant(found[BOXES].numpy() * share, tf.float32)
    expected = tf.sigmoid(detector._mask_logits(outputs, "", boxes, training=False)).numpy()
    np.testing.assert_allclose(found[MASKS].numpy()[is_row], expected[is_row], atol=1e-5)
    assert not found[MASKS].numpy()[~is_row].any()


@pytest.mark.nightly
def test_losses_of_evaluation_take_any_number_of_boxes(detector, batch, inferred):
    """The evaluation of a split pads its boxes to a number that is not known when the graph is built."""
    spec = {name: tf.TensorSpec([None, *each.shape[1:]], each.dtype) for name, each in batch.items()}
    for name in ("boxes_yxyx_rel", "class_indices", "box_weights", "masks_GHW"):
        if name in spec:
            spec[name] = tf.TensorSpec([None, None, *batch[name].shape[2:]], batch[name].dtype)

    @tf.function(input_signature=[spec], autograph=False)
    def losses(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return detector.losses(detector.forward(batch, training=False), batch)

    expected = detector.losses(inferred, batch)
    tf.config.run_functions_eagerly(False)
    for name, loss in losses(batch).items():
        assert float(loss) == pytest.approx(float(expected[name]), rel=1e-5)


@pytest.mark.parametrize(("settings", "channels"), [({"use_xy": False}, 5), ({"use_instance_embedding": False}, 4)])
def test_parts_of_the_embeddings_can_be_left_out(detector, batch, inferred, settings, channels):
    smaller = with_masks(detector, **settings)
    assert detector.mask_network.input.shape[-1] == 2 + 2 + 3  # positions, pixels and objects
    assert smaller.mask_network.input.shape[-1] == channels
    assert np.isfinite(smaller.losses(inferred, batch)["mask_loss"])


@pytest.mark.parametrize(
    ("network", "channels"),
    [
        ("hourglass10", (20, 20)),
        ("hourglass20", (20, 20, 30)),
        ("hourglass32", (20, 20, 30, 30)),
        ("hourglass52", (20, 20, 30, 30, 30, 40)),
        ("hourglass100", (20, 20, 30, 30, 30, 40)),
    ],
)
def test_channels_of_the_mask_network_are_those_of_the_reference(network, channels):
    """`hourglass_network.py` of the Object Detection API."""
    masks = dataclasses.replace(TINY, network_type=network, num_init_channels=10, mask_size=32)
    assert mask_hourglass(masks).channels == channels


def test_a_class_that_the_label_map_lacks_is_refused():
    with pytest.raises(InputError, match=r"allowed_masked_classes_ids: got 3, allowed: ids of the label map"):
        check_mask_classes(dataclasses.replace(TINY, allowed_masked_classes_ids=(1, 3)), FIVE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_size": 9}, "mask_size: got 9, allowed: a multiple of 2 up to 256 with hourglass10"),
        ({"mask_size": 24, "network_type": "hourglass52"}, "mask_size: got 24, allowed: a multiple of 32"),
        ({"classification_loss": WeightedSoftmax()}, "classification_loss: got WeightedSoftmax"),
        ({"allowed_masked_classes_ids": (0,)}, "allowed_masked_classes_ids"),
    ],
)
def test_a_wrong_value_is_named(settings, message):
    with pytest.raises(FieldError, match=re.escape(message)):
        dataclasses.replace(TINY, **settings)


def test_masks_are_refused_in_other_formats_and_with_keypoints(config, keypoint_task):
    with pytest.raises(FieldError, match="TensorFlow Lite files have no masks"):
        config.check_export(Export(tflite=("float16",)))
    with pytest.raises(FieldError, match="deepmac_mask_estimation: got set"):
        dataclasses.replace(config, keypoint_estimation_task=keypoint_task)


def test_weak_losses_of_the_reference_are_refused():
    text = (
        "model { center_net { deepmac_mask_estimation { color_consistency_loss_weight: 1 network_type: 'resnet4' } } }"
    )
    refused = {note.path.rpartition(".")[2]: note.reason for note in parse_pipeline_config(text, "F").refused}
    assert refused["color_consistency_loss_weight"].endswith("masks are trained from masks only")
    assert refused["network_type"].startswith('got "resnet4", allowed: hourglass10, hourglass20')


@pytest.mark.nightly
def test_a_training_step_and_the_exported_graph_compile_under_xla(
    detector, batch, assert_step_compiles, assert_export_compiles
):
    assert_step_compiles(detector, batch)
    assert_export_compiles(detector)


@pytest.mark.nightly
def test_it_is_trained_evaluated_and_exported(config, tmp_path, make_squares, write_records):
    tf.config.run_functions_eagerly(False)
    images = make_squares(6, have_masks=True)
    shards = [[str(write_records(tmp_path / f"Split-{split}" / "data", images))] for split in ("train", "eval")]
    optimizer = AdamOptimizer(learning_rate=ConstantLearningRate(learning_rate=1e-3))
    whole = TrainEvalConfig(
        model=config,
        train=Train(num_steps=2, batch_size=2, optimizer=optimizer, monitoring=Monitoring(num_images=0)),
        eval=Eval(batch_size=2, evaluate_every=2, best_metric="mask_AP"),
        train_input=InputReader(max_number_of_boxes=4),
    )
    result = train(whole, FIVE, *shards, tmp_path / "run")
    export_saved_model(result.detector, whole, tmp_path / "model")  # raises if a signature differs
    outputs = tf.saved_model.load(str(tmp_path / "model")).signatures[SIGNATURE_IMAGES](
        input_tensor=tf.zeros([3, 50, 70, 3], tf.uint8)
    )
    assert outputs[MASKS].shape == (3, config.max_detections, 8, 8)


@pytest.mark.slow
def test_masks_are_outputs_of_the_onnx_file(detector, assert_onnx_file_detects, tmp_path):
    tf.config.run_functions_eagerly(False)
    assert_onnx_file_detects(detector, tmp_path / "model.onnx", Export())


def test_the_batch_norms_of_both_networks_are_folded(detector, assert_folds):
    assert_folds(detector)
