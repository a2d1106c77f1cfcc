"""Parts of odapi_reference.py: label map and ground truth of a CenterNet with keypoints; ground truth of Deep-MAC."""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

NUM_ROWS = 5  # of Deep-MAC's ground truth, as in the tests: each image has equally many boxes
CLASS_ID = 2  # of the class with keypoints in the label map
CLASSES = ([1, 0, 1, 1], [1, 0])  # of odapi_reference.py's boxes, counted from 0

COCO_NAMES = ["nose"]
COCO_NAMES += [
    f"{side}_{part}"
    for part in ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
    for side in ("left", "right")
]
UNCONFIGURED = "PATH_TO_BE_CONFIGURED"


def has_keypoints(config):
    return config.model.WhichOneof("model") == "center_net" and bool(config.model.center_net.keypoint_estimation_task)


def configure_label_map(config):
    """Write a label map in which one class has the keypoints, and set its path.

    COCO's keypoints are in COCO's order, others in the order of the written configuration, which is alphabetical.
    """
    (task,) = config.model.center_net.keypoint_estimation_task
    names = sorted(task.keypoint_label_to_std)
    names = COCO_NAMES if names == sorted(COCO_NAMES) else names
    points = "".join(f'  keypoints {{ id: {i} label: "{name}" }}\n' for i, name in enumerate(names))
    path = Path(tempfile.mkdtemp()) / "label_map.pbtxt"
    path.write_text(f'item {{\n  name: "{task.keypoint_class_name}"\n  id: {CLASS_ID}\n{points}}}\n')
    config.model.center_net.keypoint_label_map_path = str(path)


def forget_label_map(config):
    config.model.center_net.keypoint_label_map_path = UNCONFIGURED


def keypoints_of(boxes, classes, num_points):
    """Return keypoints [G, P, 2] for each image: a third not labelled, one outside its box; NaN for other classes."""
    random = np.random.RandomState(5)
    result = []
    for of_image, classes_of_image in zip(boxes, classes):  # noqa: B905 (Python 3.9)
        of_image = np.asarray(of_image, np.float32)
        points = random.uniform(size=(len(of_image), num_points, 2)).astype(np.float32)
        points = of_image[:, None, :2] + points * (of_image[:, None, 2:] - of_image[:, None, :2])
        points[:, 3] = of_image[:, 2:] + 0.03
        points[random.uniform(size=points.shape[:2]) < 1 / 3] = np.nan
        points[np.asarray(classes_of_image) != CLASS_ID - 1] = np.nan
        result.append(points.astype(np.float32))
    return result


def give_keypoints(model, boxes, classes):
    """Add keypoints to the ground truth of a model; return them by name."""
    (params,) = model._kp_params_dict.values()
    points = keypoints_of(boxes, classes, len(params.keypoint_indices))
    model._groundtruth_lists["keypoints"] = [tf.constant(each) for each in points]
    return {f"keypoints{number}": each for number, each in enumerate(points)}


def is_deepmac(model):
    return hasattr(model, "_mask_net")


def pad_groundtruth(model):
    """Pad boxes, classes, weights and masks of each image with zeros."""
    for values in model._groundtruth_lists.values():
        for number, value in enumerate(values):
            missing = NUM_ROWS - value.shape[0]
            values[number] = tf.pad(value, [[0, missing], *[[0, 0]] * (value.shape.rank - 1)])
