"""Values that odapi_reference.py stores of a model with two stages (Faster R-CNN) beside those of all models."""

import tensorflow as tf
from object_detection.core import box_list, standard_fields, target_assigner

OUTPUTS = (
    "rpn_box_encodings",
    "rpn_objectness_predictions_with_background",
    "refined_box_encodings",
    "class_predictions_with_background",
)
PARTS = ("proposals_eval", "proposals_train", "proposals_of_stored")


def is_two_stage(model):
    return hasattr(model, "_first_stage_max_proposals")


def outputs_of(prediction):
    """Return the raw predictions; those of the second stage are [B, P, ...]."""
    batch_size = prediction["rpn_box_encodings"].shape[0]
    outputs = {name: prediction[name].numpy() for name in OUTPUTS}
    return {
        name: value if name.startswith("rpn") else value.reshape(batch_size, -1, *value.shape[1:])
        for name, value in outputs.items()
    }


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
