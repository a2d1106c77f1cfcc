"""A detector that trains in seconds, and images for it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from PIL import Image
from tools.made_records import make_boxes, serialize

from detloom.schemas.model import augmentations
from detloom.schemas.model.config import Eval, InputReader, Monitoring, TrainEvalConfig
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.network import FixedShapeResizer, Fpn, WeightSharedConvolutionalBoxPredictor
from detloom.schemas.model.optimizers import AdamWOptimizer, ConstantLearningRate, MovingAverage
from detloom.schemas.presets.presets import find_preset

CLASS_NAMES = ("red", "green")
IMAGE_HW = (96, 128)


def tiny_config() -> TrainEvalConfig:
    """Return a configuration that often runs everything that could leak: evaluation, checkpoints, summaries."""
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    model = config.model
    assert isinstance(model, Ssd)
    assert isinstance(model.box_predictor, WeightSharedConvolutionalBoxPredictor)
    neck = Fpn(min_level=3, max_level=5, additional_layer_depth=160)  # times 0.1: 16 channels
    model = replace(
        model,
        image_resizer=FixedShapeResizer(height=64, width=64),
        feature_extractor=replace(model.feature_extractor, neck=neck, depth_multiplier=0.1, min_depth=8),
        anchor_generator=MultiscaleAnchorGenerator(min_level=3, max_level=5, aspect_ratios=(1.0,), scales_per_octave=1),
        box_predictor=replace(model.box_predictor, depth=16, num_layers_before_predictor=1),
    )
    train = replace(
        config.train,
        num_steps=2**31 - 1,
        batch_size=4,
        optimizer=AdamWOptimizer(learning_rate=ConstantLearningRate(learning_rate=1e-3)),
        moving_average=MovingAverage(decay=0.99),
        augmentations=(
            augmentations.RandomHorizontalFlip(),
            augmentations.RandomCropImage(min_area=0.5, min_object_covered=0.3),
            augmentations.RandomAdjustBrightness(),
        ),
        checkpoint_every_n=50,
        monitoring=Monitoring(histograms=True, gradient_norms=True),
    )
    evaluation = Eval(batch_size=4, evaluate_every=100, use_moving_averages=True, keep_best=2)
    return replace(config, model=model, train=train, eval=evaluation, train_input=InputReader(max_number_of_boxes=8))


def one_level_config() -> TrainEvalConfig:
    """Return the same with one pyramid level, which XLA compiles on two CPU cores in 15 s instead of 4 minutes."""
    config = tiny_config()
    model = config.model
    assert isinstance(model, Ssd)
    extractor = model.feature_extractor
    neck = replace(extractor.neck, max_level=3)
    anchors = replace(model.anchor_generator, max_level=3)
    model = replace(model, feature_extractor=replace(extractor, neck=neck), anchor_generator=anchors)
    return replace(config, model=model)


def make_examples(num_images: int, seed: int) -> Iterator[bytes]:
    """Yield records of bright rectangles on noise, 1 to 6 per image."""
    random, (height, width) = np.random.default_rng(seed), IMAGE_HW
    for number in range(num_images):
        image = random.integers(0, 128, (height, width, 3), np.uint8)
        count = int(random.integers(1, 7))
        boxes, class_ids = make_boxes(random, count, 0.1), random.integers(1, 3, count)
        boxes_px = boxes * (height, width, height, width)
        for (ymin, xmin, ymax, xmax), class_id in zip(boxes_px, class_ids, strict=True):
            image[int(ymin) : int(ymax), int(xmin) : int(xmax), class_id - 1] = 255
        yield serialize(Image.fromarray(image), number, boxes, class_ids)
