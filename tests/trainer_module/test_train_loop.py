import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import ConstantRate, Momentum, TrainerConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module import train_loop
from detloom.trainer_module.coco_metrics import CocoMetrics
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


def test_a_run_that_was_killed_goes_on_and_ends_with_the_best_weights(tmp_path, shards, tiny_config, monkeypatch):
    """Killed at the evaluation of step 4; of the evaluations that count, step 2 is best (AP 0.9, then 0.1 and 0.2)."""
    out = tmp_path / "run"
    config = replace(tiny_config, training=replace(tiny_config.training, evaluate_every=2))
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
    assert any(value.shape == kernel.shape and np.array_equal(value, kernel) for value in stored)
    assert from_json(TrainerConfig, (out / CONFIG_FILE).read_text()) == config
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [2, 4, 4, 6]
    assert json.loads((out / SUMMARY_FILE).read_text())["best"]["AP"] == 0.9
    assert {path.name.split(".")[0] for path in (out / "best").glob("ckpt*")} == {"ckpt-2"}


def test_another_run_in_the_same_folder_is_refused(tmp_path, shards, tiny_config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"config\.json: another run stands here"):
        train(tiny_config, LABEL_MAP, *shards, tmp_path / "run")


def test_evaluation_sees_averaged_weights_and_training_gets_its_own_back(tmp_path, shards, tiny_config):
    loop = train_loop._Loop(tiny_config, LABEL_MAP, *shards, tmp_path, build_strategy())
    bias = loop.detector.network.get_layer("head_offsets").bias
    zeros = [tf.zeros_like(variable) for variable in loop.detector.network.trainable_variables]
    for value in (1.0, 3.0):
        bias.assign(tf.fill(bias.shape, value))
        loop.optimizer.apply(zeros, loop.detector.network.trainable_variables)
    trained = bias.numpy()
    with loop._averaged_weights():
        # the average starts at the first value and keeps half of it at the second: (1 + 3) / 2
        np.testing.assert_allclose(bias.numpy(), np.full(bias.shape, 2.0), atol=0.02)
    np.testing.assert_array_equal(bias.numpy(), trained)


def test_the_loss_falls(tmp_path, shards, tiny_config):
    optimizer = replace(tiny_config.training.optimizer, rate=ConstantRate(learning_rate=5e-3))
    training = replace(tiny_config.training, num_steps=40, steps_per_call=10, evaluate_every=40, optimizer=optimizer)
    train(replace(tiny_config, training=training), LABEL_MAP, *shards, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / LOG_FILE).read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]


def test_a_loss_that_is_not_finite_stops_with_a_sentence(tmp_path, shards, tiny_config):
    rate = Momentum(rate=ConstantRate(learning_rate=1e30))
    training = replace(tiny_config.training, optimizer=rate, clip_norm=None)
    with pytest.raises(
        InputError, match=r"The training loss became nan between steps \d+ and \d+.*lower training\.optimizer"
    ):
        train(replace(tiny_config, training=training), LABEL_MAP, *shards, tmp_path / "run")


def test_a_record_that_cannot_be_used_is_one_sentence(tmp_path, shards, tiny_config, make_example, write_records):
    unknown = write_records(tmp_path / "Split-unknown" / "data", [make_example([(0, 0, 1, 1)], [9], name="img_7")])
    with pytest.raises(InputError, match=r"Split-unknown.*a class id that the label map lacks.*img_7.*9") as caught:
        train(tiny_config, LABEL_MAP, [str(unknown)], shards[1], tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_several_replicas_are_refused(tmp_path, shards, tiny_config):
    two = SimpleNamespace(num_replicas_in_sync=2)
    with pytest.raises(InputError, match="strategy: got 2 replicas, allowed: 1"):
        train(tiny_config, LABEL_MAP, *shards, tmp_path / "run", two)


def test_an_empty_split_is_named(tmp_path, shards, tiny_config):
    with pytest.raises(InputError, match=r"nothing-here.*is the split empty"):
        train(tiny_config, LABEL_MAP, [str(tmp_path / "nothing-here*")], shards[1], tmp_path / "run")
