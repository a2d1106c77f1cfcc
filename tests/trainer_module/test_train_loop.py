import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import ConstantRate, Momentum, TrainerConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.typed_dict import from_json
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


def test_a_run_that_was_cut_short_goes_on_and_leaves_log_configuration_and_summary(tmp_path, shards, tiny_config):
    out = tmp_path / "run"
    first = replace(tiny_config, training=replace(tiny_config.training, num_steps=4))
    train(first, LABEL_MAP, *shards, out)
    result = train(tiny_config, LABEL_MAP, *shards, out)
    assert result.num_steps == 6
    assert from_json(TrainerConfig, (out / CONFIG_FILE).read_text()) == tiny_config
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    steps = [("train", 2), ("train", 4), ("eval", 4), ("train", 6), ("eval", 6)]
    assert [(row["kind"], row["step"]) for row in rows] == steps
    summary = json.loads((out / SUMMARY_FILE).read_text())
    assert summary["best_step"] in (4, 6)
    assert summary["best"]["AP"] == result.best.AP


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


def test_without_gpus_there_is_one_device():
    assert build_strategy().num_replicas_in_sync == max(1, len(tf.config.list_logical_devices("GPU")))


def test_an_empty_split_is_named(tmp_path, shards, tiny_config):
    with pytest.raises(InputError, match=r"nothing-here.*is the split empty"):
        train(tiny_config, LABEL_MAP, [str(tmp_path / "nothing-here*")], shards[1], tmp_path / "run")
