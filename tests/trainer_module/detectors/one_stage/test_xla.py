"""The training step of variants of SSD compiles with XLA, as required on TPU."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.losses import HardExampleMiner, WeightedCiou, WeightedSigmoid, WeightedSoftmax
from detloom.schemas.model.network import ExtraFeatureLayers
from detloom.trainer_module.detectors.families import build_detector

LABEL_MAP = LabelMap(((1, "cat"), (2, "dog"), (3, "owl")))
EXTRACTOR, HEAD = "feature_extractor", "box_predictor"
PLAIN_SSD = {
    f"{EXTRACTOR}.neck": ExtraFeatureLayers(num_layers=3),
    "anchor_generator": SsdAnchorGenerator(num_layers=3, aspect_ratios=(1.0, 2.0)),
    "add_background_class": True,
    "loss.classification_loss": WeightedSoftmax(),
    "loss.hard_example_miner": HardExampleMiner(num_hard_examples=20, max_negatives_per_positive=3),
}
FAMILIES = {
    "mobilenet_v2_fpnlite": {},
    "mobilenet_v2_fpnlite_other_losses": {
        "loss.classification_loss": WeightedSigmoid(),
        "loss.localization_loss": WeightedCiou(),
        "matcher.force_match_for_each_row": True,
    },
    "mobilenet_v1_fpn": {
        f"{EXTRACTOR}.backbone": "mobilenet_v1",
        f"{EXTRACTOR}.use_depthwise": False,
        f"{HEAD}.use_depthwise": False,
        f"{HEAD}.share_prediction_tower": False,
    },
    "mobilenet_v2": PLAIN_SSD,
}


def make_batch(image_hw):
    rng = np.random.default_rng(1)
    low, size = rng.uniform(0, 0.5, (2, 2, 4, 2))
    return {
        "image": tf.constant(rng.uniform(-1, 1, (2, *image_hw, 3)), tf.float32),
        "boxes_yxyx_rel": tf.constant(np.concatenate([low, low + 0.1 + 0.8 * size], axis=-1), tf.float32),
        "class_indices": tf.constant([[0, 2, -1, -1], [1, -1, -1, -1]]),
        "true_hw": tf.constant([[*image_hw]] * 2),
    }


@pytest.mark.nightly  # a minute of compilation each
@pytest.mark.parametrize("settings", FAMILIES.values(), ids=FAMILIES)
def test_training_step_compiles_and_gives_the_same_loss(small_config, changed, settings, assert_step_compiles):
    detector = build_detector(changed(small_config.model, settings), LABEL_MAP)
    assert_step_compiles(detector, make_batch(detector.network.input_shape[1:3]))
