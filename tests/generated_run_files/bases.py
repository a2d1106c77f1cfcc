"""The run files from which the generator starts: one small detector of each kind, on a tiny data set."""

from pathlib import Path
from typing import Any

from detloom.pipelines.samples.demo_data import write_demo_data
from detloom.schemas.load_config import apply_layer, load_tree
from detloom.schemas.reading.overrides import Located
from detloom.schemas.reading.typed_dict import to_dict
from detloom.schemas.reading.yaml_file import parse_yaml
from detloom.schemas.run_file.read_run_file import build_run

NUM_TRAIN, NUM_EVAL, NUM_TEST = 24, 8, 8  # a share of 0.1 of them is hardly ever empty
IMAGE_HW = (96, 96)

_RUN = """
name: generated
data:
  format: coco
  path: {data}
  splits: {{train: annotations/train.json, eval: annotations/eval.json, test: annotations/test.json}}
  max_reject_fraction: 1.0
checks: {{near_duplicates: {{severity: "off"}}}}
gates: {{no_floor_reason: "The training has a few steps."}}
"""
_TRAINING = """
train:
  batch_size: 2
  num_steps: 2
  optimizer: {type: AdamWOptimizer, learning_rate: {type: ConstantLearningRate, learning_rate: 0.001}}
  augmentations: [{type: RandomHorizontalFlip}, {type: SsdRandomCrop}, {type: Mosaic}]
eval: {batch_size: 2, evaluate_every: 4}
"""
_SMALL = """
  image_resizer: {type: FixedShapeResizer, height: 64, width: 64}
"""
DETECTORS = {
    "ssd_mobilenet_v2_fpnlite_320x320": """
  feature_extractor: {depth_multiplier: 0.1, neck: {max_level: 5, additional_layer_depth: 16}}
  anchor_generator: {max_level: 5, aspect_ratios: [1.0], scales_per_octave: 1}
  box_predictor: {depth: 16, num_layers_before_predictor: 1}
""",
    "ssd_mobilenet_v2_320x320": """
  feature_extractor: {depth_multiplier: 0.1}
""",
    "ssd_mobilenet_v1_fpn_640x640": """
  feature_extractor: {depth_multiplier: 0.1, neck: {min_level: 4, max_level: 4, additional_layer_depth: 16}}
  anchor_generator: {type: GridAnchorGenerator, scales: [0.1, 0.2], aspect_ratios: [1.0]}
  box_predictor: {depth: 16, num_layers_before_predictor: 1}
""",
    "efficientdet_d0": """
  feature_extractor: {neck: {num_iterations: 1, num_filters: 8, max_level: 6}}
  anchor_generator: {max_level: 6, aspect_ratios: [1.0], scales_per_octave: 1}
  box_predictor: {depth: 8, num_layers_before_predictor: 1}
""",
    "centernet_resnet101_v1_fpn_512x512": """
  feature_extractor: {backbone: mobilenet_v2, depth_multiplier: 0.25}
  object_detection_task:
    scale_head_params: {num_filters: [8], kernel_sizes: [3]}
    offset_head_params: {num_filters: [8], kernel_sizes: [3]}
  object_center_params: {center_head_params: {num_filters: [8], kernel_sizes: [3]}}
""",
    "faster_rcnn_resnet50_v1_640x640": """
  first_stage_box_predictor_depth: 16
  first_stage_max_proposals: 16
  second_stage_batch_size: 8
  initial_crop_size: 4
""",
}


def write_tiny_data(folder: Path) -> Path:
    write_demo_data(folder, num_train=NUM_TRAIN, num_eval=NUM_EVAL, num_test=NUM_TEST, seed=1, image_hw=IMAGE_HW)
    return folder


def base_of(detector: str, data: Path, *, by_ratio: bool = False) -> dict[str, Any]:
    """Return all values of a valid run file with a small network and few steps.

    Args:
        by_ratio: split the data by ratio and set a floor, instead of named splits and a reason for no floor.
    """
    text = f"{_TRAINING}model:{_SMALL}{DETECTORS[detector][1:]}"
    over = Located(parse_yaml(text, detector)[0], lambda _: detector)
    config = apply_layer(load_tree(detector, Path())[0], over)
    run = parse_yaml(_RUN.format(data=data), "base")[0]
    if by_ratio:
        del run["data"]["splits"]
        run["data"]["split_by_ratio"] = {"train": 0.5, "eval": 0.25, "test": 0.25}
        run["gates"] = {"floors": [{"metric": "AP", "min": 0.0}]}
    return dict(to_dict(build_run(Located({**run, **config.data}, config.locate))))
