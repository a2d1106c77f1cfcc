"""A whole training run, its export, and the restoring of checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
from training_parts import newest_state

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import Eval, InputReader, Monitoring, Train, TrainEvalConfig
from detloom.schemas.model.optimizers import AdamOptimizer, ConstantLearningRate
from detloom.trainer_module.evaluation.split_evaluator import SplitEvaluator
from detloom.trainer_module.export.saved_model import export_saved_model
from detloom.trainer_module.training.loop import train

RED_GREEN = LabelMap.from_names(["red", "green"])


@pytest.fixture(scope="module", params=["fpn", "masks"])
def config(request) -> TrainEvalConfig:
    optimizer = AdamOptimizer(learning_rate=ConstantLearningRate(learning_rate=1e-3))
    return TrainEvalConfig(
        model=request.getfixturevalue(f"{request.param}_config"),
        train=Train(
            num_steps=4, batch_size=2, steps_per_call=2, optimizer=optimizer, monitoring=Monitoring(num_images=0)
        ),
        eval=Eval(batch_size=2, evaluate_every=2, best_metric="loss"),
        train_input=InputReader(max_number_of_boxes=4),
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory, make_squares, write_records) -> tuple[list[str], list[str]]:
    folder, images = tmp_path_factory.mktemp("data"), make_squares(8, have_masks=True)
    train_file = write_records(folder / "Split-train" / "data", images)
    return [str(train_file)], [str(write_records(folder / "Split-eval" / "data", images[:3]))]


@pytest.fixture(scope="module")
def result(config, shards, thin, tmp_path_factory):
    with thin():
        return train(config, RED_GREEN, *shards, tmp_path_factory.mktemp("run"))


def kill(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.nightly
def test_a_killed_run_draws_the_same_samples_after_it_resumed(config, shards, tmp_path, monkeypatch):
    train(config, RED_GREEN, *shards, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(SplitEvaluator, "__call__", kill)
        with pytest.raises(KeyboardInterrupt):
            train(config, RED_GREEN, *shards, tmp_path / "killed")
    train(config, RED_GREEN, *shards, tmp_path / "killed")
    one, other = newest_state(tmp_path / "whole"), newest_state(tmp_path / "killed")
    assert one.keys() == other.keys()
    for key, value in one.items():  # other samples change weights by 1e-3; threads that sum in another order, by 1e-9
        np.testing.assert_allclose(value, other[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.nightly
def test_an_exported_model_equals_the_one_in_memory_at_any_batch_size(result, config, tmp_path):
    export_saved_model(result.detector, config, tmp_path / "model")  # raises if a signature differs
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for batch_size in (1, 3):
        images = tf.zeros([batch_size, 50, 70, 3], tf.uint8)
        outputs = loaded.signatures[names.SIGNATURE_IMAGES](input_tensor=images)
        assert outputs[names.BOXES].shape == (batch_size, 10, 4)
        assert outputs[names.SCORES].shape == (batch_size, 10)
        has_masks = config.model.number_of_stages == 3
        assert (names.MASKS in outputs) == has_masks
        if has_masks:
            assert outputs[names.MASKS].shape == (batch_size, 10, 6, 8)
