import dataclasses

import pytest

from detloom.schemas.model.center_net import (
    CenterNet,
    CenterNetFeatureExtractor,
    KeypointEstimation,
    KeypointLoss,
    KeypointStd,
    PredictionHeadParams,
)
from detloom.schemas.model.losses import PenaltyReducedFocal, WeightedL1


@pytest.fixture(scope="session")
def keypoint_task() -> KeypointEstimation:
    """Ear and tail of cats."""
    return KeypointEstimation(
        task_name="cat_pose",
        loss=KeypointLoss(classification_loss=PenaltyReducedFocal(), localization_loss=WeightedL1()),
        keypoint_class_name="cat",
        keypoint_label_to_std=(KeypointStd(name="ear", std=3.0), KeypointStd(name="tail", std=1.0)),
        keypoint_regression_loss_weight=0.1,
        per_keypoint_offset=True,
        offset_peak_radius=1,
    )


@pytest.fixture(scope="session")
def hourglass_config(center_net_configs) -> CenterNet:
    """With Hourglass-104, which a test replaces by a small one, heads of four channels, and inputs of 128 pixels."""
    base = center_net_configs["resnet50"]
    head = PredictionHeadParams(num_filters=(4,), kernel_sizes=(3,))
    boxes = dataclasses.replace(base.object_detection_task, scale_head_params=head, offset_head_params=head)
    return dataclasses.replace(
        base,
        feature_extractor=CenterNetFeatureExtractor(backbone="hourglass_104"),
        object_detection_task=boxes,
        object_center_params=dataclasses.replace(base.object_center_params, center_head_params=head),
        image_resizer=dataclasses.replace(base.image_resizer, min_dimension=128, max_dimension=128),
    )
