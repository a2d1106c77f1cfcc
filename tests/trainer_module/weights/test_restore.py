"""Modes, notes and errors of restoring, on a small detector with weights in the Object Detection API's layout."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.checkpoint_address import parse_archive_address
from detloom.schemas.model.config import Train
from detloom.schemas.model.optimizers import ConstantLearningRate, MomentumOptimizer
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.weights.downloaded_archive import archive_by_hand
from detloom.trainer_module.weights.odapi_keys import odapi_keys
from detloom.trainer_module.weights.own_checkpoint import write_weights
from detloom.trainer_module.weights.restore import find_trained, plan_restore, restore
from detloom.trainer_module.weights.restore_report import format_report, format_share
from detloom.trainer_module.weights.variable_names import layer_variable, part_of, variables_by_path

CLASSIFICATION_ROOT = "feature_extractor/"
TRAIN = Train(num_steps=1, optimizer=MomentumOptimizer(learning_rate=ConstantLearningRate(learning_rate=0.1)))


def detector_of(config, count):
    return build_detector(config.model, LabelMap.from_names([f"class {i}" for i in range(count)]))


@pytest.fixture(scope="module")
def detector(tiny_config):
    """A detector of two classes; tests that change its weights set all of them."""
    return detector_of(tiny_config, 2)


def random_weights(variables):
    rng = np.random.default_rng(1)
    return {path: rng.normal(size=variable.shape).astype(np.float32) for path, variable in variables.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory, detector, write_arrays):
    """A checkpoint in the zoo's layout for 2 classes: its path, and its arrays by our path and by key."""
    variables = variables_by_path(detector.network)
    keys = odapi_keys(detector.family, detector.network)
    by_path = random_weights(variables)
    by_key = {keys[layer_variable(path)]: array for path, array in by_path.items()}
    return write_arrays(tmp_path_factory.mktemp("zoo") / "ckpt-0", by_key), by_path, by_key


@pytest.fixture(scope="module")
def three(tiny_config):
    return detector_of(tiny_config, 3)


def plan(detector, path, mode="auto", **settings):
    train = replace(TRAIN, fine_tune_checkpoint=str(path), fine_tune_checkpoint_type=mode, **settings)
    return plan_restore(train, detector, find_trained(train, detector))


def refusal(*arguments, **settings):
    report = plan(*arguments, **settings).report
    assert "\n" not in report.refusal
    assert f"error: {report.refusal}" in format_report(report)
    return report.refusal


@pytest.mark.parametrize(
    ("mode", "parts"), [("full", {"backbone", "neck", "head"}), ("detection", {"backbone", "neck"})]
)
def test_mode_restores_its_parts(detector, stored, mode, parts):
    path, by_path, _ = stored
    found = plan(detector, path, mode)
    assert found.report.refusal == ""
    assert found.report.share == 1.0
    assert set(found.arrays) == {name for name in by_path if part_of(name) in parts}
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, by_path[name])


def test_an_archive_at_an_address_is_restored(detector, stored, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = "https://host.invalid/tiny.tar.gz"
    by_hand = archive_by_hand(parse_archive_address(address), tmp_path / "detloom/checkpoints")
    by_hand.parent.mkdir(parents=True)
    with tarfile.open(by_hand, "w:gz") as archive:
        for path in Path(stored[0]).parent.glob("ckpt-0.*"):
            archive.add(path, f"tiny/checkpoint/{path.name}")
    report = plan(detector, address).report
    assert (report.mode, report.refusal) == ("full", "")
    assert f"from {address}" in report.sentence()


def test_another_class_count_leaves_the_last_class_layer_initialized(three, stored):
    report = plan(three, stored[0]).report
    assert report.mode == "all_but_classes"
    assert {row.path.rpartition("/")[0] for row in report.fresh} == {"head/classes"}
    assert (report.note, report.sentence().partition(" ")[0]) == ("", "Restored:")
    message = refusal(three, stored[0], "full")
    assert "has 2 classes and this detector 3" in message
    assert "set it to 'all_but_classes'" in message
    settings = {"fine_tune_skip_mismatch": True, "fine_tune_min_restored_share": 0.5}
    report = plan(three, stored[0], "full", **settings).report
    assert report.refusal == ""
    assert {row.reason.partition(" with")[0] for row in report.fresh} == {"stored"}


def test_auto_is_classification_for_a_backbone(tmp_path, detector, stored, write_arrays):
    keys = {key: array for key, array in stored[2].items() if "classification_backbone" in key}
    arrays = {CLASSIFICATION_ROOT + key.partition("classification_backbone/")[2]: a for key, a in keys.items()}
    path = write_arrays(tmp_path / "ckpt-1", arrays)
    report = plan(detector, path).report
    assert (report.mode, report.refusal, report.unread) == ("classification", "", ())
    assert {part_of(row.path) for row in report.restored} == {"backbone"}
    assert "set it to 'classification'" in refusal(detector, path, "full")


def test_whole_detector_as_classification_is_refused(detector, stored):
    message = refusal(detector, stored[0], "classification")
    assert message.endswith("'full', 'all_but_classes' or 'detection'.")


def test_absent_part_is_refused_even_if_small(tmp_path, detector, stored, write_arrays):
    keys = [key for key in stored[2] if "_fpn_features_generator" not in key]
    path = write_arrays(tmp_path / "ckpt-0", {key: stored[2][key] for key in keys})
    found = plan(detector, path, "detection", fine_tune_min_restored_share=0.1).report
    assert found.share > 0.8
    assert "0.0% of the parameters of the neck" in found.refusal
    backbone_only = plan(detector, path, "detection", fine_tune_include=("^backbone/",)).report
    assert "train.fine_tune_include: ['^backbone/']" in found.refusal
    assert (backbone_only.refusal, backbone_only.note) == ("", "")
    assert "'full' restores everything, but" in refusal(detector, path, "full", fine_tune_min_restored_share=0.1)


def test_absent_variable_is_noted(tmp_path, detector, stored, write_arrays):
    missing = "head/conv_0/pointwise_kernel"
    keys = odapi_keys(detector.family, detector.network)
    arrays = {key: array for key, array in stored[2].items() if key != keys[layer_variable(missing)]}
    path = write_arrays(tmp_path / "ckpt-0", arrays)
    report = plan(detector, path, "all_but_classes", fine_tune_min_restored_share=0.0).report
    assert report.refusal == ""
    assert f"{missing} (absent in the checkpoint)" in report.note


def test_share_below_one_is_never_formatted_as_100_percent():
    assert [format_share(share) for share in (1.0, 0.9996, 0.5, 0.0)] == ["100.0%", "99.9%", "50.0%", "0.0%"]


def test_values_of_another_type_and_nonfinite_values_are_refused(tmp_path, detector, stored, write_arrays):
    key = next(key for key in stored[2] if key.endswith("gamma/.ATTRIBUTES/VARIABLE_VALUE"))
    integers = write_arrays(tmp_path / "a", {**stored[2], key: stored[2][key].astype(np.int64)})
    assert "stored as int64" in refusal(detector, integers, "full")
    all_integers = write_arrays(tmp_path / "c", {key: array.astype(np.int32) for key, array in stored[2].items()})
    assert "the first difference is backbone/Conv1/kernel (stored as int32)" in refusal(detector, all_integers, "full")
    broken = write_arrays(tmp_path / "b", {**stored[2], key: np.full_like(stored[2][key], np.nan)})
    assert key in refusal(detector, broken)


@pytest.mark.parametrize("mode", ["full", "classification"])
def test_another_architecture_is_refused(tmp_path, detector, stored, mode, write_arrays):
    others = write_arrays(tmp_path / "ckpt-0", {key: array[..., None] for key, array in stored[2].items()})
    assert "another architecture" in refusal(detector, others, mode)


def test_weights_by_name_and_unknown_objects_are_refused(tmp_path, detector, write_arrays):
    path = str(tmp_path / "model.ckpt")
    tf.raw_ops.SaveV2(prefix=path, tensor_names=["conv/kernel"], shape_and_slices=[""], tensors=[tf.zeros(1)])
    with pytest.raises(InputError, match="TensorFlow 1"):
        plan(detector, path)
    strange = write_arrays(tmp_path / "ckpt-0", {"brain/cell/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(1, np.float32)})
    with pytest.raises(InputError, match="brain/cell"):
        plan(detector, strange)


def test_patterns_select_the_restored_variables(detector, stored):
    settings = {"fine_tune_include": ("^backbone/", "^neck/"), "fine_tune_exclude": ("block_1_",)}
    report = plan(detector, stored[0], **settings).report
    reasons = {row.path: row.reason for row in report.fresh}
    assert reasons["head/offsets/bias"] == "not in fine_tune_include"
    assert reasons["backbone/block_1_expand/kernel"] == "in fine_tune_exclude"
    assert report.share == 1.0


def test_patterns_that_match_or_leave_nothing_are_refused(detector, three, stored):
    message = r"train\.fine_tune_exclude: got 'block_1_expnd', .* backbone/block_1_expand/kernel"
    with pytest.raises(InputError, match=message):
        plan(detector, stored[0], fine_tune_exclude=("block_1_expnd",))
    report = plan(three, stored[0], fine_tune_exclude=("^head/classes",)).report  # outside of the mode
    assert (report.mode, report.refusal, report.share) == ("all_but_classes", "", 1.0)
    with pytest.raises(InputError, match=r"fine_tune_exclude \['\.\*'\] .*'all_but_classes'"):
        plan(three, stored[0], fine_tune_exclude=(".*",))
    with pytest.raises(InputError, match="fine_tune_include"):
        plan(three, stored[0], fine_tune_include=("^head/classes",))


def test_backbone_is_restored_from_a_detector_that_shares_only_the_backbone(tmp_path, detector, stored, write_arrays):
    """Following the advice of each error message leads to a plan without an error."""
    renamed = {
        key if "classification_backbone" in key else key.replace("model/_", "model/_box_predictor/other_"): array
        for key, array in stored[2].items()
    }
    path = write_arrays(tmp_path / "ckpt-0", renamed)
    for mode in ("auto", "all_but_classes", "detection"):
        assert "fine_tune_include: ['^backbone/']" in refusal(detector, path, mode)
    assert "set it to 'detection', and train.fine_tune_include to ['^backbone/']" in refusal(
        detector, path, "classification"
    )
    for mode in ("auto", "detection"):
        report = plan(detector, path, mode, fine_tune_include=("^backbone/",)).report
        assert (report.refusal, report.share) == ("", 1.0)


@pytest.mark.parametrize("change", ["depthwise", "scalar"])
def test_class_layer_that_differs_in_more_than_classes_is_named(tmp_path, three, stored, change, write_arrays):
    """The depthwise kernel of the last class layer precedes the variables whose shape depends on the classes."""
    name = {"depthwise": "depthwise_kernel", "scalar": "bias"}[change]
    key = odapi_keys(three.family, three.network)[f"head_classes/{name}"]
    array = np.zeros((5, 5, 16, 1) if change == "depthwise" else (), np.float32)
    path = write_arrays(tmp_path / "ckpt-0", {**stored[2], key: array})
    message = refusal(three, path, "full")
    assert "first head/classes/" in message


def test_surrounding_whitespace_and_slashes_of_a_path_are_removed(detector, stored):
    path = stored[0]
    assert plan(detector, f"  {path}/\n").report.checkpoint == path
    with pytest.raises(InputError, match=r"got 'a\\nb'"):
        plan(detector, "a\nb")


def test_a_class_layer_that_may_belong_to_other_classes_gives_a_note(tmp_path, tiny_config, detector, stored):
    assert "does not name its classes" in plan(detector, stored[0]).report.note
    assert plan(detector, stored[0], "full").report.note == ""
    write_weights(detector, tiny_config, tmp_path / "model")
    assert plan(detector, tmp_path / "model").report.note == ""
    swapped = build_detector(tiny_config.model, LabelMap.from_names(["class 1", "class 0"]))
    assert "are class 0, class 1, here class 1, class 0;" in plan(swapped, tmp_path / "model").report.note
    with_background = replace(tiny_config, model=replace(tiny_config.model, add_background_class=True))
    one = build_detector(with_background.model, LabelMap.from_names(["class 1"]))
    write_weights(one, with_background, tmp_path / "one")
    assert "are background, class 1, here class 0, class 1;" in plan(detector, tmp_path / "one").report.note


def test_optimizer_slots_are_not_listed_as_unread(tmp_path, detector, stored, write_arrays):
    key = next(iter(stored[2]))
    slot = key.replace("/.ATTRIBUTES", "/.OPTIMIZER_SLOT/optimizer/momentum/.ATTRIBUTES")
    extra = {slot: stored[2][key], "step/.ATTRIBUTES/VARIABLE_VALUE": np.int64(5)}
    report = plan(detector, write_arrays(tmp_path / "ckpt-5", {**stored[2], **extra})).report
    assert (report.refusal, report.unread) == ("", ())


def test_refused_checkpoint_leaves_the_network_unchanged(three, stored):
    before = three.network.get_layer("Conv1").kernel.numpy()
    train = replace(TRAIN, fine_tune_checkpoint=stored[0], fine_tune_checkpoint_type="full")
    with pytest.raises(InputError, match="all_but_classes"):
        restore(train, three, find_trained(train, three))
    np.testing.assert_array_equal(three.network.get_layer("Conv1").kernel.numpy(), before)


def test_weights_of_a_model_are_restored_from_its_folder(tmp_path, tiny_config, detector):
    variables = variables_by_path(detector.network)
    values = random_weights(variables)
    for name, value in values.items():
        variables[name].assign(value)
    folder = write_weights(detector, tiny_config, tmp_path / "model")
    assert sorted(path.name.partition(".data")[0] for path in folder.iterdir()) == [
        "ckpt",
        "ckpt.index",
        "config.json",
        "label_map.pbtxt",
    ]
    (tmp_path / "model" / "Format-Serving").mkdir()
    for where in (tmp_path / "model", folder, folder / "ckpt", tmp_path / "model" / "Format-Serving"):
        found = plan(detector, where)
        assert (found.report.mode, found.report.unread) == ("full", ())
        np.testing.assert_array_equal(found.arrays["head/classes/bias"], values["head/classes/bias"])


def write_run(folder, detector, *, averages_count):
    """Write a checkpoint of a run with all weights 1 and their averages 2."""
    variables = variables_by_path(detector.network)
    roots = {"network": 1.0, "averaged_weights": 2.0}
    trees = {
        root: {path: tf.Variable(tf.fill(variable.shape, value)) for path, variable in variables.items()}
        for root, value in roots.items()
    }
    (folder / "config.json").write_text(json.dumps({"eval": {"use_moving_averages": averages_count}}))
    state = {"num_boxes_dropped": tf.Variable(3)}
    return tf.train.Checkpoint(**trees, steps=state).write(str(folder / "checkpoints" / "ckpt-1"))


@pytest.mark.parametrize("averages_count", [True, False])
def test_averages_are_restored_if_the_run_evaluated_them(tmp_path, detector, averages_count, monkeypatch):
    path = write_run(tmp_path, detector, averages_count=averages_count)
    monkeypatch.chdir(tmp_path / "checkpoints")
    for where in (path, "ckpt-1"):  # a path without a folder is in the working directory
        found = plan(detector, where)
        expected = np.full(4, 2.0 if averages_count else 1.0)
        np.testing.assert_array_equal(found.arrays["head/offsets/bias"], expected)
        assert found.report.unread == ()  # the run's state is not listed


def test_invalid_files_beside_a_checkpoint_are_ignored(tmp_path, detector):
    path = write_run(tmp_path, detector, averages_count=True)
    for text in ("", "[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        np.testing.assert_array_equal(plan(detector, path).arrays["head/offsets/bias"], np.full(4, 1.0))
    for content in (b"", b"\xff\xfe\x00", b"no list"):
        (tmp_path / "list/checkpoints").mkdir(parents=True, exist_ok=True)
        (tmp_path / "list/checkpoints/checkpoint").write_bytes(content)
        with pytest.raises(InputError, match=r"\.index\.$"):
            plan(detector, tmp_path / "list")


def write_best(folder, detector, steps):
    """Write weights that all equal their step, and the list of them in the order of `steps`."""
    for step in steps:
        trees = {
            path: tf.Variable(tf.fill(v.shape, float(step))) for path, v in variables_by_path(detector.network).items()
        }
        tf.train.Checkpoint(network=trees).write(str(folder / "best" / f"ckpt-{step}"))
    (folder / "best" / "best.json").write_text(json.dumps({"entries": [{"path": f"ckpt-{step}"} for step in steps]}))


def test_best_weights_of_a_run_are_restored_if_their_list_is_valid(tmp_path, detector):
    write_best(tmp_path, detector, [9, 10])
    np.testing.assert_array_equal(plan(detector, tmp_path).arrays["head/offsets/bias"], np.full(4, 9.0))
    state = tf.train.Checkpoint(step=tf.Variable(9))
    tf.train.CheckpointManager(state, str(tmp_path / "checkpoints"), max_to_keep=1).save()
    for text in ("{", "[" * 100_000, '{"entries": [{"path": "../../elsewhere"}]}'):
        (tmp_path / "best" / "best.json").write_text(text)
        with pytest.raises(InputError, match=r"train\.fine_tune_checkpoint: .*checkpoints/ckpt-1'"):
            plan(detector, tmp_path)


def test_keras_file_is_read_by_layer_names(tmp_path, detector, stored):
    path = tmp_path / "backbone.h5"
    with h5py.File(path, "w") as file:
        for name, array in stored[1].items():
            layer, _, variable = layer_variable(name).rpartition("/")
            if part_of(name) == "backbone":
                file[f"{layer}/{layer}/{variable}:0"] = array
    found = plan(detector, path)
    assert (found.report.mode, found.report.share) == ("classification", 1.0)
    np.testing.assert_array_equal(found.arrays["backbone/Conv1/kernel"], stored[1]["backbone/Conv1/kernel"])
    for name in ("a.h5", "a.keras"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(InputError, match=name):
            plan(detector, tmp_path / name)
