"""The run files from which the generator starts: one small detector of each kind, on a tiny data set."""

import json
from pathlib import Path
from typing import Any

from detloom.pipelines.samples.demo_data import write_demo_data
from detloom.schemas.load_config import apply_layer, load_tree
from detloom.schemas.reading.overrides import Located, merge
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
_WITH_MASKS = """
data: {masks: true}
train: {augmentations: [{type: RandomHorizontalFlip}, {type: SsdRandomCrop}]}
eval: {metrics_set: [coco_detection_metrics, coco_mask_metrics]}
"""
_WITH_KEYPOINTS = """
data: {keypoints: true}
train: {augmentations: [{type: RandomHorizontalFlip, keypoint_flip_permutation: [1, 0, 2]}, {type: SsdRandomCrop}]}
eval: {keypoint_sigmas: [{name: left, sigma: 0.1}, {name: right, sigma: 0.1}, {name: top, sigma: 0.05}]}
"""
_SMALL = """
  image_resizer: {type: FixedShapeResizer, height: 64, width: 64}
"""
_SMALL_CENTER_NET = """
  feature_extractor: {backbone: mobilenet_v2, depth_multiplier: 0.25}
  object_detection_task:
    scale_head_params: {num_filters: [8], kernel_sizes: [3]}
    offset_head_params: {num_filters: [8], kernel_sizes: [3]}
  object_center_params: {center_head_params: {num_filters: [8], kernel_sizes: [3]}}
"""
_SMALL_FASTER_RCNN = """
  first_stage_box_predictor_depth: 16
  first_stage_max_proposals: 16
  second_stage_batch_size: 8
  initial_crop_size: 4
"""
OF_BOXES = {
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
    "centernet_resnet101_v1_fpn_512x512": _SMALL_CENTER_NET,
    "faster_rcnn_resnet50_v1_640x640": _SMALL_FASTER_RCNN,
}
# The detectors that learn masks or keypoints, too; a run's data has only what its detector learns.
OF_SHAPES = {
    "mask_rcnn_inception_resnet_v2_1024x1024": f"""{_SMALL_FASTER_RCNN}
  feature_extractor: {{backbone: resnet50_v1}}
  second_stage_box_predictor: {{mask_height: 16, mask_width: 16}}
""",
    "centernet_hourglass104_512x512": f"""{_SMALL_CENTER_NET}
  deepmac_mask_estimation:
    {{network_type: hourglass10, mask_size: 16, num_init_channels: 8, dim: 8, pixel_embedding_dim: 4}}
""",
    "centernet_resnet50_v2_512x512_kpts": f"""{_SMALL_CENTER_NET}
  keypoint_estimation_task:
    keypoint_class_name: "1"
    keypoint_label_to_std: [{{name: left, std: 1.0}}, {{name: right, std: 0.5}}, {{name: top, std: 1.0}}]
    heatmap_head_params: {{num_filters: [8], kernel_sizes: [3]}}
    offset_head_params: {{num_filters: [8], kernel_sizes: [3]}}
    regress_head_params: {{num_filters: [8], kernel_sizes: [3]}}
""",
}
_ADDED = {
    "mask_rcnn_inception_resnet_v2_1024x1024": _WITH_MASKS,
    "centernet_hourglass104_512x512": _WITH_MASKS,
    "centernet_resnet50_v2_512x512_kpts": _WITH_KEYPOINTS,
}


def write_tiny_data(folder: Path) -> Path:
    """Write the demo data with masks, and with three keypoints of the objects of class "1"."""
    write_demo_data(folder, num_train=NUM_TRAIN, num_eval=NUM_EVAL, num_test=NUM_TEST, seed=1, image_hw=IMAGE_HW)
    for path in (folder / "annotations").iterdir():
        coco = json.loads(path.read_text())
        for category in coco["categories"]:
            if category["name"] == "1":
                category["keypoints"] = ["left", "right", "top"]
        for annotation in coco["annotations"]:
            if len(annotation["bbox"]) == 4:
                _add_shapes(annotation)
        path.write_text(json.dumps(coco))
    return folder


def _add_shapes(annotation: dict[str, Any]) -> None:
    """Add a triangle as the mask, and keypoints of which some are hidden or not labelled."""
    x, y, width, height = annotation["bbox"]
    middle_x, bottom = x + width / 2, y + height
    annotation["segmentation"] = [[x, bottom, middle_x, y, x + width, bottom]]
    if annotation["category_id"] == 2:  # class "1"
        is_labelled = annotation["id"] % 3 > 0
        top = [middle_x, y, 2] if is_labelled else [0, 0, 0]
        annotation |= {"keypoints": [x, bottom, 2, x + width, bottom, 1, *top], "num_keypoints": 2 + is_labelled}


def base_of(detector: str, data: Path, *, by_ratio: bool = False) -> dict[str, Any]:
    """Return all values of a valid run file with a small network and few steps.

    Args:
        by_ratio: split the data by ratio and set a floor, instead of named splits and a reason for no floor.
    """
    run = parse_yaml(_RUN.format(data=data), "base")[0]
    network = f"{_TRAINING}model:{_SMALL}{(OF_BOXES | OF_SHAPES)[detector][1:]}"
    trees = [parse_yaml(text, detector)[0] for text in (network, _ADDED.get(detector, "{}"))]
    run["data"] |= trees[1].pop("data", {})
    over = merge(*(Located(tree, lambda _: detector) for tree in trees))
    config = apply_layer(load_tree(detector, Path())[0], over)
    if by_ratio:
        del run["data"]["splits"]
        run["data"]["split_by_ratio"] = {"train": 0.5, "eval": 0.25, "test": 0.25}
        run["gates"] = {"floors": [{"metric": "AP", "min": 0.0}]}
    return dict(to_dict(build_run(Located({**run, **config.data}, config.locate))))
