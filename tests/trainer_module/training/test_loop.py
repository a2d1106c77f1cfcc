import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import training_parts as parts

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import EarlyStopping, Monitoring, NonFinite, TrainEvalConfig
from detloom.schemas.model.optimizers import ConstantLearningRate
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.evaluation.split_evaluator import SplitEvaluator
from detloom.trainer_module.run_state import run_checkpoints
from detloom.trainer_module.run_state.nonfinite import NONFINITE_FILE
from detloom.trainer_module.run_state.run_checkpoints import RunCheckpoints
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
from detloom.trainer_module.training import loop
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.training.optimizers import with_scaled_learning_rate
from detloom.trainer_module.weights.odapi_keys import VALUE
from detloom.trainer_module.weights.own_checkpoint import write_weights
from detloom.trainer_module.weights.restore_report import REPORT_JSON, REPORT_TEXT
from detloom.trainer_module.weights.variable_names import variables_by_path

LABEL_MAP = LabelMap.from_names(["red", "green"])


def image_of(make_example, i, weights=None):
    """Return an example with a colored square: red is class 1, green class 2."""
    y, x = np.random.default_rng(i).uniform(0, 0.4, 2)
    example = tf.train.Example.FromString(make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=f"image {i}"))
    if weights is not None:
        example.features.feature[keys.WEIGHT].float_list.value.extend(weights)
    return example.SerializeToString()


@pytest.fixture(scope="module")
def shards(tmp_path_factory, make_example, write_records):
    """16 training images in two files, and 4 evaluation images."""
    folder = tmp_path_factory.mktemp("data")
    images = [image_of(make_example, i) for i in range(16)]
    train_files = [str(write_records(folder / "Split-train" / f"data-{part}", images[part::2])) for part in range(2)]
    return train_files, [str(write_records(folder / "Split-eval" / "data", images[:4]))]


@pytest.fixture(autouse=True)
def _networks_built_once(monkeypatch):
    monkeypatch.setattr(loop, "build_strategy", parts.one_device)
    monkeypatch.setattr(loop, "build_detector", parts.reset_detector)


@pytest.fixture
def measured(monkeypatch):
    """`measured(0.1, 0.9)` sets the AP of the next evaluations; None simulates a kill during an evaluation."""

    def set_values(*values):
        remaining = iter(values)

        def measure(self, between_batches=None):
            value = next(remaining)
            if value is None:
                raise KeyboardInterrupt
            return parts.evaluation_of(value)

        monkeypatch.setattr(SplitEvaluator, "__call__", measure)
        monkeypatch.setattr(loop, "build_eval_dataset", lambda *_, **__: tf.data.Dataset.from_tensors({"image": 0}))

    return set_values


def weights_of(result):
    return {path: variable.numpy() for path, variable in variables_by_path(result.detector.network).items()}


# --- kill and resume --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path, shards, one_level_config, changed, measured):
    """The run is killed while it evaluates step 3. Shuffling, flips, averages and the schedule depend on the step.

    The evaluation of step 3 after resuming is the best.
    """
    scaling = {"train.scale_learning_rate": True, "train.learning_rate_batch_size": 4}
    steps = {"train.num_steps": 4, "eval.evaluate_every": 3, "train.checkpoint_every_n": 2, "train.max_to_keep": 2}
    config = changed(one_level_config, {**steps, **scaling})
    measured(0.9, 0.1)
    whole = train(config, LABEL_MAP, *shards, tmp_path / "whole")
    expected = weights_of(whole)
    measured(None)
    with pytest.raises(KeyboardInterrupt):
        train(config, LABEL_MAP, *shards, tmp_path / "killed")
    measured(0.9, 0.1)
    resumed = train(config, LABEL_MAP, *shards, tmp_path / "killed")

    parts.assert_same_arrays(parts.newest_state(tmp_path / "whole"), parts.newest_state(tmp_path / "killed"))
    assert (resumed.num_steps, resumed.best_step, resumed.best.AP) == (4, 3, 0.9)
    parts.assert_same_arrays(weights_of(resumed), expected)
    assert [row["step"] for row in parts.rows_of(tmp_path / "killed")] == [2, 3, 4]
    assert [row["step"] for row in parts.rows_of(tmp_path / "killed", "eval")] == [3, 4]
    stored = from_json(TrainEvalConfig, (tmp_path / "killed" / CONFIG_FILE).read_text())
    assert stored == resumed.config == whole.config == with_scaled_learning_rate(config) != config
    assert parts.saved_steps(tmp_path / "killed") == [3, 4]
    assert json.loads((tmp_path / "killed" / SUMMARY_FILE).read_text())["best"]["AP"] == 0.9


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("first", "second"), [pytest.param("float16", "float32", marks=pytest.mark.slow), ("float32", "float16")]
)
def test_run_resumes_in_another_precision(tmp_path, shards, one_level_config, changed, measured, first, second):
    """The run is killed while it evaluates step 2; only float16 has a loss scale, which starts at 2**15.

    The result computes in float32, with the averages, which are evaluated and exported.
    """
    config = changed(one_level_config, {"train.num_steps": 3, "eval.evaluate_every": 2})
    measured(None)
    with pytest.raises(KeyboardInterrupt):
        train(changed(config, {"train.precision": first}), LABEL_MAP, *shards, tmp_path)
    before = parts.newest_state(tmp_path)
    measured(0.5, 0.5)
    result = train(changed(config, {"train.precision": second}), LABEL_MAP, *shards, tmp_path)

    after, loss_scale = parts.newest_state(tmp_path), f"steps/loss_scale{VALUE}"
    assert [row["step"] for row in parts.rows_of(tmp_path)] == [2, 3]
    assert (loss_scale in before, loss_scale in after) == (first == "float16", second == "float16")
    assert {value.dtype for value in after.values() if value.dtype.kind == "f"} == {np.dtype(np.float32)}
    layer = result.detector.network.get_layer("Conv1")
    assert layer.compute_dtype == "float32"
    np.testing.assert_array_equal(layer.kernel, after[f"averaged_weights/backbone.SConv1.Skernel{VALUE}"])
    assert from_json(TrainEvalConfig, (tmp_path / CONFIG_FILE).read_text()).train.precision == second


# --- non-finite steps -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisoned_shards(tmp_path_factory, make_example, write_records, shards):
    """Shards in file order: step 1 (counted from 0) has images 2 and 3, and the loss of image 3 is NaN."""
    images = [image_of(make_example, i, [float("nan")] if i == 3 else None) for i in range(8)]
    folder = tmp_path_factory.mktemp("poisoned")
    return [str(write_records(folder / "Split-train" / "data", images))], shards[1]


@pytest.mark.usefixtures("eager")
def test_batch_with_a_nan_loss_is_logged_and_skipped(
    tmp_path, poisoned_shards, one_level_config, changed, measured, caplog
):
    settings = {"train_input.shuffle": False, "train.checkpoint_every_n": 1, "train.num_steps": 3}
    measured(0.1)
    result = train(changed(one_level_config, settings), LABEL_MAP, *poisoned_shards, tmp_path / "run")
    assert (result.num_steps, result.num_incidents) == (3, 1)
    assert "step 2 at a learning rate of 0.001" in caplog.text  # half of the warm-up
    assert "image 2, image 3" in caplog.text
    assert all(np.isfinite(value).all() for value in weights_of(result).values())
    (event,) = parts.rows_of(tmp_path / "run", "event")
    assert (event["event"], event["step"], event["bad_step"]) == ("rollback", 1, 1)
    assert [row["step"] for row in parts.rows_of(tmp_path / "run")] == [1, 3]
    (incident,) = json.loads((tmp_path / "run" / NONFINITE_FILE).read_text())
    assert incident["keys"] == ["image 2", "image 3"]


@pytest.mark.usefixtures("eager")
def test_weights_that_overflow_in_the_last_step_are_neither_saved_nor_evaluated(
    tmp_path, shards, one_level_config, changed
):
    rate = ConstantLearningRate(learning_rate=3e38)
    settings = {
        "train.optimizer.learning_rate": rate,
        "train.bias_grad_multiplier": 1e6,  # finite gradients, infinite updates
        "train.gradient_clipping": None,
        "train.num_steps": 1,
        "train.nonfinite": NonFinite(action="stop"),
    }
    with pytest.raises(InputError, match=r"step 1 at a learning rate of 3e\+38"):
        train(changed(one_level_config, settings), LABEL_MAP, *shards, tmp_path / "run")
    assert parts.saved_steps(tmp_path / "run") == [0]
    assert not parts.rows_of(tmp_path / "run", "eval")


@pytest.mark.usefixtures("eager")
def test_checkpoint_is_written_after_a_time_without_any(
    tmp_path, shards, one_level_config, changed, measured, monkeypatch
):
    settings = {"train.num_steps": 2, "train.steps_per_call": 1, "train.max_to_keep": 9}
    config = changed(one_level_config, {**settings, "train.checkpoint_every_n": 1000})
    monkeypatch.setattr(run_checkpoints, "_MAX_UNSAVED_SECONDS", 0.0)
    measured(0.1)
    train(config, LABEL_MAP, *shards, tmp_path / "run")
    assert parts.saved_steps(tmp_path / "run") == [0, 1, 2]


@pytest.mark.slow  # three rollbacks
@pytest.mark.usefixtures("eager")
def test_workers_meet_after_the_chief_has_quarantined_a_checkpoint_and_before_any_lists_them(
    tmp_path, poisoned_shards, one_level_config, changed, monkeypatch
):
    events = []

    def record(owner, name):
        original = getattr(owner, name)

        def call(*arguments):
            events.append(name)
            return original(*arguments)

        monkeypatch.setattr(owner, name, call)

    record(RunCheckpoints, "quarantine_newest")
    record(RunCheckpoints, "restore_newest")
    record(loop._Loop, "_sum_over_workers")
    policy = NonFinite(action="lower_rate", max_times=2)
    settings = {"train_input.shuffle": False, "train.checkpoint_every_n": 1, "train.nonfinite": policy}
    message = r"step 2 at a learning rate of 0\.00025; .*image 3\..*incident 3"  # 0.001, halved twice
    with pytest.raises(InputError, match=message):
        train(changed(one_level_config, settings), LABEL_MAP, *poisoned_shards, tmp_path / "run")
    moved = events.index("quarantine_newest")
    assert events[moved : moved + 3] == ["quarantine_newest", "_sum_over_workers", "restore_newest"]
    assert [path.name for path in (tmp_path / "run").glob("checkpoints/damaged/*.index")] == ["ckpt-1.index"]


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_early_stopping_keeps_the_best_weights(tmp_path, shards, one_level_config, changed, measured):
    """One evaluation per step. The best two of 0.3, 0.5, 0.4, 0.45 are steps 2 and 4; then patience is exhausted."""
    settings = {
        "eval.evaluate_every": 1,
        "eval.keep_best": 2,
        "train.early_stopping": EarlyStopping(metric="AP", patience=2),
    }
    measured(0.3, 0.5, 0.4, 0.45)
    result = train(changed(one_level_config, settings), LABEL_MAP, *shards, tmp_path / "run")
    assert (result.num_steps, result.stopped_early, result.best_step, result.best.AP) == (4, True, 2, 0.5)
    assert parts.saved_steps(tmp_path / "run", "best") == [2, 4]
    assert parts.rows_of(tmp_path / "run", "event")[-1]["event"] == "stopped early"
    measured(0.5)  # evaluated again for the returned metrics
    again = train(changed(one_level_config, settings), LABEL_MAP, *shards, tmp_path / "run")
    assert (again.num_steps, again.stopped_early, again.best_step) == (4, True, 2)
    for damaged, exported in ((2, 4), (4, 4)):  # the second best, then the last checkpoint
        (data,) = (tmp_path / "run" / "best").glob(f"ckpt-{damaged}.data*")
        data.write_bytes(b"")
        measured(0.45)
        assert train(changed(one_level_config, settings), LABEL_MAP, *shards, tmp_path / "run").best_step == exported


# --- log --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_images_histograms_and_speed_are_logged(tmp_path, shards, one_level_config, changed):
    settings = {
        "train.monitoring": Monitoring(num_images=1, histograms=True),
        "train.num_steps": 2,
        "train.steps_per_call": 1,
    }
    result = train(changed(one_level_config, settings), LABEL_MAP, *shards, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "images").iterdir()} == {"input-0.png", "eval-0.png"}
    first, second = parts.rows_of(tmp_path / "run")
    assert {"loss", "class_loss", "box_loss", "regularization_loss", "gradient_norm", "learning_rate"} <= set(first)
    assert {"images_per_second", "input_share"} <= set(second)
    (row,) = parts.rows_of(tmp_path / "run", "eval")
    assert {"AP", "AP50", "AP/red", "AP/green", "loss", "class_loss", "box_loss"} <= set(row)
    assert result.performance.num_steps == 2


# --- errors and fine-tuning -------------------------------------------------------------------------------------------


def test_folder_of_another_run_is_refused(tmp_path, shards, one_level_config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"config\.json"):
        train(one_level_config, LABEL_MAP, *shards, tmp_path / "run")


def test_refused_configuration_leaves_no_settings_in_the_folder(tmp_path, shards, one_level_config, changed):
    with pytest.raises(InputError, match=r"model\.num_classes: got 90"):
        train(changed(one_level_config, {"model.num_classes": 90}), LABEL_MAP, *shards, tmp_path / "run")
    assert not (tmp_path / "run" / CONFIG_FILE).exists()


def test_missing_fine_tuning_checkpoint_is_refused_after_the_preflight_and_before_anything_is_written(
    tmp_path, shards, one_level_config, changed, caplog
):
    config = changed(one_level_config, {"train.fine_tune_checkpoint": str(tmp_path / "model" / "ckpt-0")})
    with pytest.raises(InputError, match=r"ckpt-0"):
        train(config, LabelMap.from_names(["red", "green", "blue"]), *shards, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert any("blue" in record.message for record in caplog.records if record.levelname == "WARNING")


@pytest.mark.usefixtures("eager")
def test_fine_tuning_restores_once_and_then_resumes_its_own_checkpoints(
    tmp_path, shards, one_level_config, changed, measured
):
    """Another class count and a frozen backbone, then the same folder again without the fine-tuning checkpoint."""
    start = build_detector(changed(one_level_config.model, {"num_classes": 5}), LabelMap.from_names(list("abcde")))
    folder = write_weights(start, one_level_config, tmp_path / "model")
    settings = {
        "train.fine_tune_checkpoint": str(tmp_path / "model"),
        "train.freeze_variables": ("^backbone/",),
        "train.num_steps": 2,
    }
    config = changed(one_level_config, settings)
    measured(0.5)
    result = train(config, LABEL_MAP, *shards, tmp_path / "run")

    report = json.loads((tmp_path / "run" / REPORT_JSON).read_text())
    assert (report["mode"], report["refusal"], report["share"]) == ("all_but_classes", "", 1.0)
    assert {row["path"].rpartition("/")[0] for row in report["fresh"]} == {"head/classes"}
    assert (tmp_path / "run" / REPORT_TEXT).read_text().startswith("Restored: ")
    summary = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    assert [part["num_trained"] > 0 for part in summary["trained"]] == [False, True, True]
    ours, theirs = (each.network.get_layer("Conv1").kernel.numpy() for each in (result.detector, start))
    np.testing.assert_array_equal(ours, theirs)

    shutil.rmtree(folder)
    measured(0.5)
    again = train(config, LABEL_MAP, *shards, tmp_path / "run")
    np.testing.assert_array_equal(again.detector.network.get_layer("Conv1").kernel.numpy(), theirs)


@pytest.mark.reliability("torn file", "train")
@pytest.mark.usefixtures("eager")
def test_unusable_record_is_named_in_one_sentence(tmp_path, shards, one_level_config, make_example, write_records):
    example = tf.train.Example.FromString(make_example([(0, 0, 1, 1)]))
    example.features.feature[keys.IMAGE_ENCODED].bytes_list.value[:] = [b"no image"]
    broken = write_records(tmp_path / "Split-broken" / "data", [example.SerializeToString()])
    with pytest.raises(InputError, match=r"Split-broken: .*image.*: img, img\.") as caught:
        train(one_level_config, LABEL_MAP, [str(broken)], shards[1], tmp_path / "run")
    assert "\n" not in str(caught.value)
