"""Configurations for BCCD (`time_to_map.py`): our recipe, and its version for the Object Detection API."""

import os
from dataclasses import replace
from pathlib import Path

from detloom.schemas.model.config import Eval, TrainEvalConfig
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import WeightSharedConvolutionalBoxPredictor
from detloom.schemas.model.optimizers import CosineDecayLearningRate, Optimizer
from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.run_file.read_run_file import read_run_file

SAMPLE = Path(__file__).parents[2] / "pipelines/samples/bccd.yaml"
RECIPE_MINUTES = 20  # the duration that its number of steps is made for
NUM_CHECKPOINTS = 10
CLASSES = ("RBC", "WBC", "Platelets")


def our_config(data: Path, seed: int, minutes: float) -> TrainEvalConfig:
    """Return the recipe; for other minutes, its schedule is scaled."""
    os.environ["BCCD_DIR"] = str(data)
    config = read_run_file(SAMPLE).config
    checkpoint_every_n = max(1, round(config.train.num_steps * minutes / RECIPE_MINUTES / NUM_CHECKPOINTS))
    num_steps = checkpoint_every_n * NUM_CHECKPOINTS
    train = replace(
        config.train,
        num_steps=num_steps,
        optimizer=with_length(config.train.optimizer, num_steps),
        seed=seed,
        checkpoint_every_n=checkpoint_every_n,
        max_to_keep=2 * NUM_CHECKPOINTS,
        early_stopping=None,
    )
    return replace(config, train=train, eval=replace(config.eval, evaluate_every=num_steps))


def peer_config(ours: TrainEvalConfig, num_steps: int, examples: Path) -> str:
    """Return the text of a pipeline.config with the zoo's hyperparameters for our architecture."""
    config = _zoo_config(ours)
    train = replace(
        config.train,
        num_steps=num_steps,
        optimizer=with_length(config.train.optimizer, num_steps),
        fine_tune_checkpoint_type="detection",  # unused: the peer does not support our "auto"
        checkpoint_every_n=1000,  # defaults: in the peer these are arguments, not configuration
        max_to_keep=3,
        seed=0,
    )
    label_map = str(examples / "label_map.pbtxt")
    readers = {
        "train_input": replace(config.train_input, label_map_path=label_map, input_path=(_records(examples, "train"),)),
        "eval_input": replace(config.eval_input, label_map_path=label_map, input_path=(_records(examples, "test"),)),
    }
    evaluation = Eval(batch_size=1, use_moving_averages=train.moving_average is not None)
    model = replace(config.model, num_classes=len(CLASSES))
    text = format_pipeline_config(replace(config, model=model, train=train, eval=evaluation, **readers))
    return text.partition("[detloom.overrides]")[0]  # our extension, which the peer cannot read


def with_length(optimizer: Optimizer, num_steps: int) -> Optimizer:
    """Return an optimizer whose schedule ends at another step, with a proportional warm-up."""
    rate = optimizer.learning_rate
    assert isinstance(rate, CosineDecayLearningRate), rate
    warmup_steps = max(1, round(rate.warmup_steps * num_steps / rate.total_steps))
    return replace(optimizer, learning_rate=replace(rate, total_steps=num_steps, warmup_steps=warmup_steps))


def _zoo_config(ours: TrainEvalConfig) -> TrainEvalConfig:
    """Return the zoo's hyperparameters with our architecture, batch size, boxes and NMS."""
    zoo = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    model, mine = zoo.model, ours.model
    assert isinstance(model, Ssd)
    assert isinstance(mine, Ssd)
    head, my_head = model.box_predictor, mine.box_predictor
    assert isinstance(head, WeightSharedConvolutionalBoxPredictor)
    assert isinstance(my_head, WeightSharedConvolutionalBoxPredictor)
    sizes = {
        name: getattr(mine.feature_extractor, name) for name in ("backbone", "neck", "depth_multiplier", "min_depth")
    }
    model = replace(
        model,
        image_resizer=mine.image_resizer,
        feature_extractor=replace(model.feature_extractor, **sizes),
        anchor_generator=mine.anchor_generator,
        box_predictor=replace(
            head, depth=my_head.depth, num_layers_before_predictor=my_head.num_layers_before_predictor
        ),
        post_processing=mine.post_processing,
    )
    train = replace(zoo.train, batch_size=ours.train.batch_size)
    return replace(zoo, model=model, train=train, train_input=ours.train_input)


def _records(examples: Path, split: str) -> str:
    return str(examples / f"Split-{split}/*tfrecord*")
