"""Fine-tuning from 90 classes of the Object Detection API to 3 classes, with its own checkpoints."""

from dataclasses import replace

import keras
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.weights.restore import find_trained, restore

MODELS = {"ssd_mobilenet_v2_fpnlite_320x320": "ssd_mobilenet_v2_fpnlite_320x320"}
MODELS["efficientdet_d0"] = "ssd_efficientdet_d0_512x512"
TIERS = dict(zip(MODELS, (pytest.mark.slow, pytest.mark.nightly), strict=True))


def detector_of(preset, count):
    model = replace(find_preset(preset).config.model, num_classes=count)
    return build_detector(model, LabelMap.from_names([f"class {i}" for i in range(count)]))


def restored(preset, detector, reference_dir, mode):
    path = str(reference_dir / MODELS[preset] / "checkpoint" / "ckpt-0")
    train = replace(find_preset(preset).config.train, fine_tune_checkpoint=path, fine_tune_checkpoint_type=mode)
    return restore(train, detector, find_trained(train, detector))


def fresh_head_on(detector, whole, images, training):
    """Compute class logits with `detector`'s last layer on the input of the whole detector's last layer."""
    features = [node.input_tensors[0] for node in whole.network.get_layer("head_classes")._inbound_nodes]
    maps = keras.Model(whole.network.input, features)(images, training=training)
    head, depth = detector.network.get_layer("head_classes"), detector.network.output["class_logits_BAC"].shape[-1]
    return tf.concat([tf.reshape(head(each), (len(images), -1, depth)) for each in maps], axis=1)


@pytest.mark.parametrize("preset", [pytest.param(name, marks=tier) for name, tier in TIERS.items()])
def test_first_loss_is_that_of_a_new_class_head_on_restored_features(preset, reference_dir):
    detector, whole = detector_of(preset, 3), detector_of(preset, 90)
    report = restored(preset, detector, reference_dir, "auto")
    assert (report.mode, report.share) == ("all_but_classes", 1.0)
    assert {row.path.rpartition("/")[0] for row in report.fresh} == {"head/classes"}
    assert restored(preset, whole, reference_dir, "auto").mode == "full"

    height, width = detector.network.input.shape[1:3]
    images = tf.random.stateless_uniform((2, height, width, 3), (1, 2), -1, 1)
    batch = {
        "image": images,
        "boxes_yxyx_rel": tf.constant([[[0.1, 0.1, 0.5, 0.6]], [[0.2, 0.3, 0.9, 0.9]]]),
        "class_indices": tf.constant([[0], [2]]),
    }
    training = not preset.startswith("efficientdet")  # its stochastic depth is random
    logits = fresh_head_on(detector, whole, images, training)
    offsets = whole.network(images, training=training)["offsets_BA4"]
    expected = detector.losses({"offsets_BA4": offsets, "class_logits_BAC": logits}, batch)
    found = detector.losses(detector.forward(batch, training=training), batch)
    for name in detector.loss_names:
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-4)
