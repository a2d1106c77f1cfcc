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
from detloom.schemas.odapi.pipeline_config import parse_pipeline_config, read_pipeline_config
from detloom.trainer_module.detectors.centernet.deepmac import mask_hourglass, mask_loss, trained_mask_weights
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.export.saved_model import export_saved_model
from detloom.trainer_module.layers.backbones.hourglass import HOURGLASSES, Hourglass
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys

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


@pytest.fixture(scope="module")
def build(config):
    """Return a function that builds the detector with other settings of its masks."""

    def make(**settings) -> Detector:
        keras.utils.set_random_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(HOURGLASSES, "hourglass_104", SMALL)
            masks = dataclasses.replace(TINY, **settings)
            return build_detector(dataclasses.replace(config, deepmac_mask_estimation=masks), FIVE)

    return make


@pytest.fixture(autouse=True)
def _small_hourglass(monkeypatch):
    monkeypatch.setitem(HOURGLASSES, "hourglass_104", SMALL)


@pytest.fixture(scope="module")
def detector(build) -> Detector:
    return build()


@pytest.fixture(scope="module")
def batch(center_net_truth) -> dict[str, tf.Tensor]:
    """The upper half of each image is the mask of every box."""
    truth = {key: tf.constant(value) for key, value in center_net_truth.items()}
    masks = np.zeros((*truth["class_indices"].shape, 128, 128), np.uint8)
    masks[:, :, :64] = 1
    images = np.random.default_rng(0).uniform(0, 255, (2, 128, 128, 3)).astype(np.float32)
    return {"image": tf.constant(images), "masks_GHW": tf.constant(masks), **truth}


def test_masks_of_each_hourglass_are_trained_unless_only_those_of_the_last_one(build, detector, batch):
    num_boxes = batch["class_indices"].shape[1]
    outputs = detector.forward(batch, training=True)
    for suffix in ("", "_hourglass1"):
        assert outputs[f"mask_logits_BGss{suffix}"].shape == (2, num_boxes, 8, 8)
    only_last = build(use_only_last_stage=True).forward(batch, training=True)
    assert "mask_logits_BGss" in only_last
    assert "mask_logits_BGss_hourglass1" not in only_last


def test_losses_have_the_declared_names_in_both_modes(detector, batch):
    for training in (True, False):
        losses = detector.losses(detector.forward(batch, training=training), batch)
        assert tuple(losses) == detector.loss_names
        assert np.isfinite(losses["mask_loss"])


def test_losses_of_parts_add_up_to_those_of_the_batch(detector, batch):
    outputs = detector.forward(batch, training=True)
    counts = detector.count_matches(batch)
    parts = [
        detector.losses(
            {name: value[i : i + 1] for name, value in outputs.items()},
            {name: value[i : i + 1] for name, value in batch.items()},
            counts,
        )
        for i in range(2)
    ]
    for name, loss in detector.losses(outputs, batch).items():
        assert float(parts[0][name] + parts[1][name]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.slow
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


def test_detections_have_the_mask_in_their_box(detector, batch):
    outputs = detector.forward(batch, training=False)
    found = tf.function(detector.detections, autograph=False)(outputs, batch["true_hw"])
    assert set(found) == {*OUTPUT_NAMES, MASKS}
    is_row = found[CLASSES].numpy() > 0
    share = np.tile(batch["true_hw"].numpy() / 128, 2)[:, np.newaxis]
    boxes = tf.constant(found[BOXES].numpy() * share, tf.float32)
    expected = tf.sigmoid(detector._mask_logits(outputs, "", boxes, training=False)).numpy()
    np.testing.assert_allclose(found[MASKS].numpy()[is_row], expected[is_row], atol=1e-5)
    assert not found[MASKS].numpy()[~is_row].any()


@pytest.mark.slow
def test_losses_of_evaluation_take_any_number_of_boxes(detector, batch):
    """The evaluation of a split pads its boxes to a number that is not known when the graph is built."""
    spec = {name: tf.TensorSpec([None, *each.shape[1:]], each.dtype) for name, each in batch.items()}
    for name in ("boxes_yxyx_rel", "class_indices", "box_weights", "masks_GHW"):
        if name in spec:
            spec[name] = tf.TensorSpec([None, None, *batch[name].shape[2:]], batch[name].dtype)

    @tf.function(input_signature=[spec], autograph=False)
    def losses(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return detector.losses(detector.forward(batch, training=False), batch)

    expected = detector.losses(detector.forward(batch, training=False), batch)
    for name, loss in losses(batch).items():
        assert float(loss) == pytest.approx(float(expected[name]), rel=1e-5)


@pytest.mark.parametrize(
    "settings", [{"use_xy": False}, pytest.param({"use_instance_embedding": False}, marks=pytest.mark.slow)]
)
def test_parts_of_the_embeddings_can_be_left_out(build, detector, batch, settings):
    smaller = build(**settings)
    assert smaller.mask_network.input.shape[-1] < detector.mask_network.input.shape[-1] == 2 + 2 + 3
    assert np.isfinite(smaller.losses(smaller.forward(batch, training=True), batch)["mask_loss"])


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


def test_a_class_that_the_label_map_lacks_is_refused(build):
    with pytest.raises(InputError, match=r"allowed_masked_classes_ids: got 3, allowed: ids of the label map"):
        build(allowed_masked_classes_ids=(1, 3))


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
    with pytest.raises(FieldError, match="masks was never converted"):
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


@pytest.mark.slow
def test_every_key_of_the_zoo_occurs_once_with_its_shape(reference_dir, monkeypatch):
    """The list lacks the mask network, which the reference builds with the first ground truth."""
    monkeypatch.undo()  # the whole hourglass
    name = "center_net_deepmac_512x512_voc_only_tpu-32"
    config = read_pipeline_config(reference_dir / f"zoo_configs/{name}.config").model
    network = build_detector(config, LabelMap.from_names(str(i) for i in range(90))).network
    keys = odapi_keys(family_of(config), network)
    ours = {f"{layer.name}/{each.name}": tuple(each.shape) for layer in network.layers for each in layer.weights}
    found = {keys[variable]: shape for variable, shape in ours.items() if "_mask_net/" not in keys[variable]}
    rows = [row.split("\t") for row in (reference_dir / f"keys/{name}.tsv").read_text().splitlines()]
    rows = [row for row in rows if row[0].startswith("model/") and row[0].endswith(VALUE)]
    stored = {key: tuple(int(side) for side in re.findall(r"\d+", shape)) for key, shape, *_ in rows}
    assert found == {key: shape for key, shape in stored.items() if "_self_supervised_rng" not in key}


@pytest.mark.slow
def test_a_training_step_compiles_under_xla_and_gives_the_same_loss(detector, batch, assert_step_compiles):
    assert_step_compiles(detector, batch)


@pytest.mark.slow
def test_the_exported_graph_compiles_under_xla(detector, assert_export_compiles):
    assert_export_compiles(detector)


@pytest.mark.slow
def test_it_is_trained_evaluated_and_exported(config, tmp_path, make_example, write_records):
    """The mask of each object is its left half."""
    corners = np.random.default_rng(0).uniform(0, 0.4, (6, 2))
    masks = np.zeros((6, 64, 64), np.uint8)
    for mask, (y, x) in zip(masks, (64 * corners).astype(int), strict=True):
        mask[y : y + 32, x : x + 16] = 1
    images = [
        make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=f"{i}", masks=[masks[i]])
        for i, (y, x) in enumerate(corners)
    ]
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
