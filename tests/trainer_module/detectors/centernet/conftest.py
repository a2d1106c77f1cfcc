import pytest

from detloom.schemas.model.center_net import KeypointEstimation, KeypointLoss, KeypointStd
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
