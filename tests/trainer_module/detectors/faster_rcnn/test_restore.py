"""Restoring checkpoints of the Object Detection API, and freezing, on the thin networks of conftest.py."""

import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import Train
from detloom.schemas.model.optimizers import ConstantLearningRate, MomentumOptimizer
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys
from detloom.trainer_module.weights.restore import find_trained, plan_restore
from detloom.trainer_module.weights.variable_names import layer_variable, part_of, variables_by_path

OPTIMIZER = MomentumOptimizer(learning_rate=ConstantLearningRate(learning_rate=0.1))


def restored(detector, path: str, mode: str) -> set[str]:
    """Return the paths of the restored variables."""
    train = Train(num_steps=1, optimizer=OPTIMIZER, fine_tune_checkpoint=path, fine_tune_checkpoint_type=mode)
    plan = plan_restore(train, detector, find_trained(train, detector))
    assert not plan.report.refusal
    return set(plan.arrays)


@pytest.fixture
def zoo_checkpoint(detector, tmp_path, write_arrays) -> str:
    """A checkpoint of the detector in the layout of the zoo."""
    keys = odapi_keys(detector.family, detector.network)
    paths = variables_by_path(detector.network)
    return write_arrays(tmp_path / "ckpt-0", {keys[layer_variable(path)]: each.numpy() for path, each in paths.items()})


def test_other_classes_leave_the_layers_that_depend_on_them(detector, zoo_checkpoint):
    other = build_detector(detector.config, LabelMap.from_names(["a", "b", "c"]))
    fresh = set(variables_by_path(other.network)) - restored(other, zoo_checkpoint, "auto")
    is_shared = detector.config.second_stage_box_predictor.share_box_across_classes
    layers = {"classes"} if is_shared else {"classes", "classes_offsets"}
    layers |= {"classes_masks"} if detector.config.number_of_stages == 3 else set()
    assert fresh == {f"head/{layer}/{name}" for layer in layers for name in ("kernel", "bias")}


def test_a_classification_checkpoint_restores_the_whole_backbone(detector, tmp_path, write_arrays):
    """Its layers are numbered from the first to the last, also where the second stage has a part of the backbone."""
    keys = detector.family.odapi_classification_keys(detector.network)
    layers = [layer for layer in detector.network.layers if layer.name in keys and layer.weights]
    arrays = {
        f"feature_extractor/{keys[layer.name].rpartition('/')[2]}/{each.name}{VALUE}": each.numpy()
        for layer in layers
        if not layer.name.startswith(("neck_", "head_"))
        for each in layer.weights
    }
    found = restored(detector, write_arrays(tmp_path / "ckpt-1", arrays), "classification")
    assert found == {path for path in variables_by_path(detector.network) if part_of(path) == "backbone"}
    has_level_5 = detector.config.feature_extractor.neck is None  # the pyramid of conftest.py ends at level 4
    assert any("conv5_" in path for path in found) == has_level_5


def test_names_of_the_object_detection_api_freeze_its_first_stage(plain_detector):
    train = Train(num_steps=1, optimizer=OPTIMIZER, freeze_variables=("_feature_extractor_for_proposal_features",))
    trained = set(find_trained(train, plain_detector).by_path)
    assert "backbone/conv5_block1_1_conv/kernel" in trained
    assert "head/rpn_conv/kernel" in trained
    assert not any(path.startswith(("backbone/conv1", "backbone/conv4")) for path in trained)
