from pathlib import Path

import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.trainer_module.checkpoints.checkpoint_check import check_checkpoint

CLASSIFICATION = ("feature_extractor",)
DETECTION = ("_feature_extractor",)
WHOLE = ("_feature_extractor", "_box_predictor")


def trackable(*names: str) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(**{name: tf.train.Checkpoint(kernel=tf.Variable([1.0] * 100)) for name in names})


def write_checkpoint(folder: Path, root: tf.train.Checkpoint) -> str:
    """In the layout of the detection zoo: ckpt-0.index and ckpt-0.data-00000-of-00001."""
    return str(root.write(str(folder / "ckpt-0")))


def write_detector(folder: Path, *parts: str) -> str:
    return write_checkpoint(folder, tf.train.Checkpoint(model=trackable(*parts)))


@pytest.mark.parametrize("kind", ["detection", "full"])
def test_a_whole_detector_serves_all_kinds_of_detector(tmp_path, kind):
    check_checkpoint(write_detector(tmp_path, *WHOLE), kind)


def test_a_backbone_serves_classification(tmp_path):
    check_checkpoint(write_checkpoint(tmp_path, trackable(*CLASSIFICATION)), "classification")


@pytest.mark.parametrize("name", ["ssd_mobilenet_v2_fpnlite_320x320", "ssd_efficientdet_d0_512x512"])
def test_the_references_own_checkpoints_are_whole_detectors(reference_dir, name):
    check_checkpoint(str(reference_dir / name / "checkpoint" / "ckpt-0"), "full")


def test_a_detector_without_heads_is_not_whole(tmp_path):
    path = write_detector(tmp_path, *DETECTION)
    message = r"got 'full', but .*ckpt-0 has no model/_box_predictor/\.\.\., .* set it to 'detection'\."
    with pytest.raises(InputError, match=message):
        check_checkpoint(path, "full")


def test_a_detector_named_as_a_backbone_is_refused_with_what_it_holds(tmp_path):
    path = write_detector(tmp_path, *WHOLE)
    message = r"has no feature_extractor/\.\.\., it holds model/_box_predictor, model/_feature_extractor"
    with pytest.raises(InputError, match=message):
        check_checkpoint(path, "classification")


def test_something_else_is_refused_without_advice(tmp_path):
    path = write_checkpoint(tmp_path, trackable("network"))
    with pytest.raises(InputError, match=r"it holds network/kernel, save_counter\.$|it holds network/kernel\.$"):
        check_checkpoint(path, "detection")


def test_weights_by_name_are_refused(tmp_path):
    path = str(tmp_path / "model.ckpt")
    tf.raw_ops.SaveV2(prefix=path, tensor_names=["conv/kernel"], shape_and_slices=[""], tensors=[tf.constant([1.0])])
    with pytest.raises(InputError, match="stores weights by name, as TensorFlow 1 and google/automl do"):
        check_checkpoint(path, "detection")


def test_the_references_name_based_checkpoint_is_refused(reference_dir):
    with pytest.raises(InputError, match="stores weights by name"):
        check_checkpoint(str(reference_dir / "automl_efficientdet_d0" / "model"), "full")


def test_the_zoos_placeholder_gets_its_own_sentence():
    with pytest.raises(InputError, match=r"PATH_TO_BE_CONFIGURED/ckpt-0, the detection zoo's placeholder"):
        check_checkpoint("PATH_TO_BE_CONFIGURED/ckpt-0", "detection")


def test_a_missing_checkpoint_names_the_file_that_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"no checkpoint .*ckpt-7: there is no .*ckpt-7\.index\.$"):
        check_checkpoint(str(tmp_path / "ckpt-7"), "detection")


def test_a_folder_is_refused_with_its_latest_checkpoint(tmp_path):
    path = tf.train.CheckpointManager(trackable("model"), str(tmp_path), max_to_keep=1).save()
    with pytest.raises(InputError, match=rf"Did you mean '{path}'\?"):
        check_checkpoint(str(tmp_path), "detection")


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_a_path_with_ending_is_refused_with_the_one_without(tmp_path, ending):
    path = write_detector(tmp_path, *WHOLE)
    with pytest.raises(InputError, match=rf"allowed: the path without ending, {path}\.$"):
        check_checkpoint(path + ending, "full")


def test_a_missing_shard_is_found(tmp_path):
    path = write_detector(tmp_path, *WHOLE)
    (tmp_path / "ckpt-0.data-00000-of-00001").unlink()
    with pytest.raises(InputError, match=r"is incomplete: got 0 of 1 files ckpt-0\.data-\.\.\."):
        check_checkpoint(path, "full")


@pytest.mark.parametrize("name", ["ckpt-0.index", "ckpt-0.data-00000-of-00001"])
def test_a_file_cut_short_is_found(tmp_path, name):
    path = write_detector(tmp_path, *WHOLE)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cannot be read \(.*\); copy it again"):
        check_checkpoint(path, "full")


def test_a_checkpoint_beside_another_of_a_longer_name_is_whole(tmp_path):
    path = write_detector(tmp_path, *WHOLE)
    tf.train.Checkpoint(model=trackable(*WHOLE)).write(path + "0")
    check_checkpoint(path, "full")
