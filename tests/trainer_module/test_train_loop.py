import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.network_config import L2Regularizer
from detloom.schemas.optimizer_config import ClipByGlobalNorm, ConstantLearningRate, MomentumOptimizer
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module import train_loop
from detloom.trainer_module.checkpoints.own_checkpoint import write_weights
from detloom.trainer_module.checkpoints.restore_report import REPORT_JSON, REPORT_TEXT
from detloom.trainer_module.coco_metrics import CocoMetrics
from detloom.trainer_module.detector import build_detector
from detloom.trainer_module.train_loop import CONFIG_FILE, LOG_FILE, SUMMARY_FILE, build_strategy, train

LABEL_MAP = LabelMap.from_names(["red", "green"])


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    """Coloured squares: red is class 1, green class 2."""
    rng = np.random.default_rng(0)

    def picture(i):
        y, x = rng.uniform(0, 0.4, 2)
        return make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=str(i))

    train_file = write_records(tmp_path / "Split-train" / "data", [picture(i) for i in range(16)])
    eval_file = write_records(tmp_path / "Split-eval" / "data", [picture(i) for i in range(4)])
    return [str(train_file)], [str(eval_file)]


def metrics_of(ap: float) -> CocoMetrics:
    return CocoMetrics(**{**dict.fromkeys(METRIC_NAMES, ap), "per_class": (), "num_images": 4, "num_boxes": 4})


def test_a_run_that_was_killed_goes_on_and_ends_with_the_best_weights(
    tmp_path, shards, tiny_config, changed, monkeypatch
):
    """Killed at the evaluation of step 4; of the evaluations that count, step 2 is best (AP 0.9, then 0.1 and 0.2)."""
    out = tmp_path / "run"
    config = changed(tiny_config, {"eval.evaluate_every": 2})
    first, second = iter([0.9, None]), iter([0.1, 0.2])
    seen = []

    def measure(values):
        def evaluate(detect, dataset, label_map):
            value = next(values)
            if value is None:
                raise KeyboardInterrupt
            seen.append(value)
            return metrics_of(value)

        return evaluate

    monkeypatch.setattr(train_loop, "evaluate", measure(first))
    with pytest.raises(KeyboardInterrupt):
        train(config, LABEL_MAP, *shards, out)
    best_weights = tf.train.load_checkpoint(str(out / "best" / "ckpt-2"))
    monkeypatch.setattr(train_loop, "evaluate", measure(iter([*second, 0.9])))
    result = train(config, LABEL_MAP, *shards, out)

    assert seen == [0.9, 0.1, 0.2, 0.9]
    assert (result.num_steps, result.best_step, result.best.AP) == (6, 2, 0.9)
    kernel = result.detector.network.get_layer("head_offsets").pointwise_kernel.numpy()
    stored = [best_weights.get_tensor(name) for name in best_weights.get_variable_to_shape_map()]
    assert any(np.array_equal(value, kernel) for value in stored)
    assert from_json(TrainEvalConfig, (out / CONFIG_FILE).read_text()) == config
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [2, 4, 4, 6]
    assert json.loads((out / SUMMARY_FILE).read_text())["best"]["AP"] == 0.9
    assert {path.name.split(".")[0] for path in (out / "best").glob("ckpt*")} == {"ckpt-2"}


def test_another_run_in_the_same_folder_is_refused(tmp_path, shards, tiny_config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"config\.json: another run stands here"):
        train(tiny_config, LABEL_MAP, *shards, tmp_path / "run")


def make_loop(config, shards, folder):
    return train_loop._Loop(config, LABEL_MAP, *shards, folder, build_strategy())


def step_eagerly(loop):
    """One training step without the seconds that tracing it takes; what it is logged with."""
    return {name: float(value) for name, value in loop._replica_step(next(loop.train_iterator)).items()}


def test_what_is_refused_can_be_set_right_in_the_same_folder(tmp_path, shards, tiny_config, changed):
    with pytest.raises(InputError, match=r"model\.num_classes: got 90"):
        train(changed(tiny_config, {"model.num_classes": 90}), LABEL_MAP, *shards, tmp_path / "run")
    assert not (tmp_path / "run" / CONFIG_FILE).exists()


def test_evaluation_sees_averaged_weights_and_training_gets_its_own_back(tmp_path, shards, tiny_config):
    loop = make_loop(tiny_config, shards, tmp_path)
    bias = loop.detector.network.get_layer("head_offsets").bias
    bias.assign(tf.fill(bias.shape, 4.0))
    loop.averaged_weights.update(tf.constant(1))
    trained = bias.numpy()
    with loop._weights_to_evaluate():
        np.testing.assert_allclose(bias.numpy(), np.full(bias.shape, 2.0))  # half of the initial 0, half of 4
    np.testing.assert_array_equal(bias.numpy(), trained)


def test_averages_that_are_not_asked_for_are_kept_but_not_evaluated(tmp_path, shards, tiny_config, changed):
    loop = make_loop(changed(tiny_config, {"eval.use_moving_averages": False}), shards, tmp_path)
    bias = loop.detector.network.get_layer("head_offsets").bias
    bias.assign(tf.fill(bias.shape, 4.0))
    with loop._weights_to_evaluate():
        np.testing.assert_array_equal(bias.numpy(), np.full(bias.shape, 4.0))


def test_a_training_step_updates_the_averages_and_a_resumed_run_has_them(tmp_path, shards, tiny_config, changed):
    config = changed(tiny_config, {"train.optimizer.learning_rate": ConstantLearningRate(learning_rate=1e-2)})
    loop = make_loop(config, shards, tmp_path)
    before = [average.numpy() for average in loop.averaged_weights.averages]
    step_eagerly(loop)
    loop._save()
    after = [average.numpy() for average in loop.averaged_weights.averages]
    assert not any(np.array_equal(first, second) for first, second in zip(before, after, strict=True))
    resumed = make_loop(config, shards, tmp_path)
    assert resumed._go_on()
    for average, value in zip(resumed.averaged_weights.averages, after, strict=True):
        np.testing.assert_array_equal(average.numpy(), value)


def read_log(out, kind="train"):
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_the_loss_falls(tmp_path, shards, tiny_config, changed):
    settings = {
        "train.num_steps": 40,
        "train.steps_per_call": 10,
        "eval.evaluate_every": 40,
        "train.optimizer.learning_rate": ConstantLearningRate(learning_rate=5e-3),
    }
    train(changed(tiny_config, settings), LABEL_MAP, *shards, tmp_path / "run")
    rows = read_log(tmp_path / "run")
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]
    names = {"kind", "step", "loss", "class_loss", "box_loss", "regularization_loss", "gradient_norm", "learning_rate"}
    assert set(rows[0]) == names


@pytest.mark.parametrize("counted", [True, False])
def test_penalties_are_part_of_the_loss_if_they_are_asked_for(tmp_path, shards, tiny_config, changed, counted):
    penalty = {"model.box_predictor.conv_hyperparams.regularizer": L2Regularizer(weight=1.0)}
    config = changed(tiny_config, {**penalty, "train.add_regularization_loss": counted})
    row = step_eagerly(make_loop(config, shards, tmp_path))
    assert (row["regularization_loss"] > 0) is counted
    parts = row["class_loss"] + row["box_loss"] + row["regularization_loss"]
    assert row["loss"] == pytest.approx(parts, rel=1e-5)


def test_gradients_are_clipped_and_their_norm_before_is_logged(tmp_path, shards, tiny_config, changed):
    """Plain descent at rate 1: the step that the weights make is as long as the clipped gradient."""
    optimizer = MomentumOptimizer(learning_rate=ConstantLearningRate(learning_rate=1.0), momentum=0.0)
    clipping = ClipByGlobalNorm(norm=0.01)
    config = changed(tiny_config, {"train.optimizer": optimizer, "train.gradient_clipping": clipping})
    loop = make_loop(config, shards, tmp_path)
    variables = loop.detector.network.trainable_variables
    before = [variable.numpy() for variable in variables]
    row = step_eagerly(loop)
    moved = [variable.numpy() - value for variable, value in zip(variables, before, strict=True)]
    assert np.sqrt(sum(np.sum(np.square(each, dtype=np.float64)) for each in moved)) == pytest.approx(0.01, rel=1e-3)
    assert row["gradient_norm"] > 0.1


def test_evaluation_has_a_batch_size_of_its_own(tmp_path, shards, tiny_config, changed):
    loop = make_loop(changed(tiny_config, {"eval.batch_size": 3}), shards, tmp_path)
    assert [len(batch["image"]) for batch in loop.eval_dataset] == [3, 1]


def test_a_checkpoint_that_lacks_something_is_not_gone_on_from(tmp_path, shards, tiny_config):
    state = tf.train.Checkpoint(best_step=tf.Variable(1, dtype=tf.int64))
    tf.train.CheckpointManager(state, str(tmp_path / "checkpoints"), max_to_keep=1).save()
    with pytest.raises(InputError, match=r"ckpt-1: this run cannot go on from it \(.*train\.fine_tune_checkpoint"):
        make_loop(tiny_config, shards, tmp_path)._go_on()


def test_a_loss_that_is_not_finite_stops_with_a_sentence(tmp_path, shards, tiny_config, changed):
    optimizer = MomentumOptimizer(learning_rate=ConstantLearningRate(learning_rate=1e30))
    config = changed(tiny_config, {"train.optimizer": optimizer, "train.gradient_clipping": None})
    with pytest.raises(
        InputError,
        match=r"The training loss became nan between steps \d+ and \d+.*lower train\.optimizer\.learning_rate",
    ):
        train(config, LABEL_MAP, *shards, tmp_path / "run")


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_is_written(tmp_path, shards, tiny_config, changed):
    config = changed(tiny_config, {"train.fine_tune_checkpoint": str(tmp_path / "model" / "ckpt-0")})
    with pytest.raises(InputError, match=r"no checkpoint .*ckpt-0"):
        train(config, LABEL_MAP, *shards, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fine_tuning_starts_from_the_restored_weights_and_goes_on_from_its_own(
    tmp_path, shards, tiny_config, changed, monkeypatch
):
    """Another class count, a frozen backbone, then the same folder again: the first checkpoint is not read twice."""
    monkeypatch.setattr(train_loop, "evaluate", lambda detect, dataset, label_map: metrics_of(0.5))
    start = build_detector(changed(tiny_config.model, {"num_classes": 5}), LabelMap.from_names(list("abcde")))
    folder = write_weights(start, tiny_config, tmp_path / "model")
    settings = {
        "train.fine_tune_checkpoint": str(tmp_path / "model"),
        "train.freeze_variables": ("^backbone/",),
        "train.num_steps": 2,
    }
    config = changed(tiny_config, settings)
    result = train(config, LABEL_MAP, *shards, tmp_path / "run")

    report = json.loads((tmp_path / "run" / REPORT_JSON).read_text())
    assert (report["mode"], report["refusal"], report["share"]) == ("all_but_classes", "", 1.0)
    assert {row["path"].rpartition("/")[0] for row in report["fresh"]} == {"head/classes"}
    assert (tmp_path / "run" / REPORT_TEXT).read_text().startswith("Restored: ")
    summary = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    assert [part["num_trained"] > 0 for part in summary["trained"]] == [False, True, True]
    ours, theirs = (each.network.get_layer("block_1_expand").kernel.numpy() for each in (result.detector, start))
    np.testing.assert_array_equal(ours, theirs)

    shutil.rmtree(folder)
    assert make_loop(config, shards, tmp_path / "run").restored is None


def test_averages_start_at_the_restored_weights(tmp_path, shards, tiny_config, changed):
    start = build_detector(tiny_config.model, LABEL_MAP)
    start.network.get_layer("head_offsets").bias.assign_add(tf.fill([4], 3.0))
    write_weights(start, tiny_config, tmp_path / "model")
    config = changed(tiny_config, {"train.fine_tune_checkpoint": str(tmp_path / "model")})
    loop = make_loop(config, shards, tmp_path / "run")
    averages = dict(zip(loop.trained.by_path, loop.averaged_weights.averages, strict=True))
    np.testing.assert_array_equal(averages["head/offsets/bias"].numpy(), np.full(4, 3.0, np.float32))


def test_a_record_that_cannot_be_used_is_one_sentence(tmp_path, shards, tiny_config, make_example, write_records):
    example = tf.train.Example.FromString(make_example([(0, 0, 1, 1)]))
    example.features.feature[keys.IMAGE_ENCODED].bytes_list.value[:] = [b"no picture"]
    broken = write_records(tmp_path / "Split-broken" / "data", [example.SerializeToString()])
    with pytest.raises(InputError, match=r"Split-broken: a record cannot be used: .*image") as caught:
        train(tiny_config, LABEL_MAP, [str(broken)], shards[1], tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_what_the_preflight_warns_of_is_logged(tmp_path, shards, tiny_config, caplog):
    three_classes = LabelMap.from_names(["red", "green", "blue"])
    train_loop._Loop(tiny_config, three_classes, *shards, tmp_path, build_strategy())
    assert any("blue" in record.message for record in caplog.records if record.levelname == "WARNING")


def test_several_replicas_are_refused(tmp_path, shards, tiny_config):
    two = SimpleNamespace(num_replicas_in_sync=2)
    with pytest.raises(InputError, match="strategy: got 2 replicas, allowed: 1"):
        train(tiny_config, LABEL_MAP, *shards, tmp_path / "run", two)


def test_an_empty_split_is_named(tmp_path, shards, tiny_config):
    with pytest.raises(InputError, match=r"nothing-here.*is the split empty"):
        train(tiny_config, LABEL_MAP, [str(tmp_path / "nothing-here*")], shards[1], tmp_path / "run")
