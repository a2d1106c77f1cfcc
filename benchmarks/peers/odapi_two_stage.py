"""Values that odapi_reference.py stores of a Faster or Mask R-CNN beside those of all models."""

import numpy as np
import tensorflow as tf
from object_detection.core import box_list, standard_fields, target_assigner

OUTPUTS = (
    "rpn_box_encodings",
    "rpn_objectness_predictions_with_background",
    "refined_box_encodings",
    "class_predictions_with_background",
)
MASKS = "mask_predictions"  # [B * N, K, h, w] of the proposals in training, and of the detections in inference
PARTS = ("proposals_eval", "proposals_train", "proposals_of_stored")


def is_two_stage(model):
    return hasattr(model, "_first_stage_max_proposals")


def names_of(prediction):
    """Return the names of the raw predictions."""
    return (*OUTPUTS, MASKS) if MASKS in prediction else OUTPUTS


def outputs_of(prediction):
    """Return the raw predictions; those of the later stages are [B, P, ...]."""
    batch_size = prediction["rpn_box_encodings"].shape[0]
    outputs = {name: prediction[name].numpy() for name in names_of(prediction)}
    return {
        name: value if name.startswith("rpn") else value.reshape(batch_size, -1, *value.shape[1:])
        for name, value in outputs.items()
    }


def detect_again(model, prediction, true_shapes):
    """Replace the detections, which `predict` has made for the masks, by those of the (rounded) predictions."""
    found = model._postprocess_box_classifier(
        prediction["refined_box_encodings"],
        prediction["class_predictions_with_background"],
        prediction["proposal_boxes"],
        prediction["num_proposals"],
        true_shapes,
    )
    masks = model._gather_instance_masks(prediction[MASKS], found["detection_classes"])
    rows = found["detection_classes"].shape
    prediction.update({**found, "detection_masks": tf.reshape(tf.sigmoid(masks), [*rows, *masks.shape[1:]])})


def give_masks(model, boxes, shape):
    """Give the model an ellipse in each box as its mask; return the masks by name."""
    _, height, width, _ = shape
    rows, columns = np.mgrid[:height, :width]
    masks = []
    for of_image in boxes:
        ymin, xmin, ymax, xmax = np.asarray(of_image)[:, :, np.newaxis, np.newaxis].swapaxes(0, 1)
        y, x = (rows + 0.5) / height, (columns + 0.5) / width
        dy, dx = (2 * y - ymin - ymax) / (ymax - ymin), (2 * x - xmin - xmax) / (xmax - xmin)
        masks.append((dy**2 + dx**2 <= 1).astype(np.uint8))
    model._groundtruth_lists[standard_fields.BoxListFields.masks] = [tf.constant(each, tf.float32) for each in masks]
    return {f"masks{number}": each for number, each in enumerate(masks)}


def proposals_of(prediction):
    return {
        "boxes": prediction["proposal_boxes_normalized"].numpy(),
        "num": prediction["num_proposals"].numpy(),
    }


def proposals_of_outputs(model, prediction, true_shapes):
    """Return the proposals that the first stage's (rounded) predictions give in inference mode."""
    image_shapes = model._image_batch_shape_2d(prediction["image_shape"])
    boxes, scores, _, num, _, _ = model._postprocess_rpn(
        prediction["rpn_box_encodings"],
        prediction["rpn_objectness_predictions_with_background"],
        prediction["anchors"],
        image_shapes,
        true_shapes,
    )
    return {"boxes": boxes.numpy(), "scores": scores.numpy(), "num": num.numpy()}


def targets_of(model, prediction):
    """Return the targets of the anchors ("rpn_...") and of the proposals."""
    shapes = model._image_batch_shape_2d(prediction["image_shape"])
    boxes, classes, _, weights = model._format_groundtruth_data(shapes)
    assert model.groundtruth_has_field(standard_fields.BoxListFields.weights)
    num_channels = classes[0].shape[-1]
    first = target_assigner.batch_assign_targets(
        model._proposal_target_assigner,
        box_list.BoxList(prediction["anchors"]),
        boxes,
        [None] * len(boxes),
        None,
        weights,
    )
    second = target_assigner.batch_assign_targets(
        model._detector_target_assigner,
        [box_list.BoxList(each) for each in tf.unstack(prediction["proposal_boxes"])],
        boxes,
        classes,
        tf.constant([1.0] + [0.0] * (num_channels - 1)),
        weights,
    )
    names = ("cls_targets", "cls_weights", "reg_targets", "reg_weights", "match")
    return {
        f"{prefix}{name}": value.numpy()
        for prefix, values in (("rpn_", first), ("", second))
        for name, value in zip(names, values)  # noqa: B905 (Python 3.9)
    }
