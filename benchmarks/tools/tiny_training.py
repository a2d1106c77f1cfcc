"""A detector that trains in seconds."""

from dataclasses import replace

from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.config import InputReader, TrainEvalConfig
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.network import FixedShapeResizer, Fpn, WeightSharedConvolutionalBoxPredictor
from detloom.schemas.presets.presets import find_preset


def one_level_config() -> TrainEvalConfig:
    """Return a configuration with one pyramid level, which XLA compiles on two CPU cores in 15 s."""
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    model = config.model
    assert isinstance(model, Ssd)
    assert isinstance(model.box_predictor, WeightSharedConvolutionalBoxPredictor)
    neck = Fpn(min_level=3, max_level=3, additional_layer_depth=160)  # times 0.1: 16 channels
    model = replace(
        model,
        image_resizer=FixedShapeResizer(height=64, width=64),
        feature_extractor=replace(model.feature_extractor, neck=neck, depth_multiplier=0.1, min_depth=8),
        anchor_generator=MultiscaleAnchorGenerator(min_level=3, max_level=3, aspect_ratios=(1.0,), scales_per_octave=1),
        box_predictor=replace(model.box_predictor, depth=16, num_layers_before_predictor=1),
    )
    train = replace(config.train, batch_size=4, augmentations=(RandomHorizontalFlip(),))
    return replace(config, model=model, train=train, train_input=InputReader(max_number_of_boxes=8))
