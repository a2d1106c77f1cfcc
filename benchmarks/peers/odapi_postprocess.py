"""Run the Object Detection API's post-processing on small random outputs, in the peer's environment (build_odapi.sh).

    python odapi_postprocess.py OUTPUT_FILE

Writes the inputs, and the detections by case, for tests/trainer_module/boxes/test_postprocess.py, which has a
table of the same cases. Logits are rounded, so that scores tie; some anchors are outside of the image.
"""

import sys

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from object_detection.box_coders import faster_rcnn_box_coder
from object_detection.builders import post_processing_builder
from object_detection.core import box_list
from object_detection.protos import post_processing_pb2

NUM_ANCHORS, NUM_CLASSES = 80, 4
INPUT_HW, TRUE_HW = (64, 64), ((48, 64), (64, 40))  # padded size of the input; rows and columns of the image
NMS = "batch_non_max_suppression { score_threshold: %s iou_threshold: %s max_detections_per_class: %d " + (
    "max_total_detections: %d %s } score_converter: %s logit_scale: %s"
)
CASES = {
    "sigmoid": NMS % (1e-8, 0.6, 30, 30, "", "SIGMOID", 1.0),
    "threshold": NMS % (0.55, 0.3, 30, 30, "", "SIGMOID", 1.5),
    "few_of_a_class": NMS % (1e-8, 0.5, 3, 30, "", "SIGMOID", 1.0),
    "all_of_them": NMS % (1e-8, 1.0, 400, 400, "", "SIGMOID", 1.0),
    "identity": NMS % (0.0, 0.5, 30, 30, "", "IDENTITY", 2.0),
    "softmax": NMS % (1e-8, 0.5, 30, 30, "", "SOFTMAX", 0.5),
    "soft": NMS % (1e-3, 0.5, 30, 40, "soft_nms_sigma: 0.5", "SIGMOID", 1.0),
    "soft_few_of_a_class": NMS % (0.2, 0.5, 4, 40, "soft_nms_sigma: 0.3", "SIGMOID", 1.0),
    "class_agnostic": NMS % (1e-8, 0.5, 2, 30, "use_class_agnostic_nms: true", "SIGMOID", 1.0),
    "class_agnostic_soft": NMS % (1e-3, 0.5, 2, 30, "use_class_agnostic_nms: true soft_nms_sigma: 0.5", "SIGMOID", 1.0),
}


def make_inputs():
    rng = np.random.default_rng(5)
    centers, sizes = rng.uniform(-0.1, 1.1, (NUM_ANCHORS, 2)), rng.uniform(0.1, 0.5, (NUM_ANCHORS, 2))
    return {
        "anchors": np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1).astype(np.float32),
        "offsets": rng.normal(0, 1, (2, NUM_ANCHORS, 4)).astype(np.float32),
        "logits": rng.normal(0, 2, (2, NUM_ANCHORS, NUM_CLASSES + 1)).round(1).astype(np.float32),
        "true_hw": np.array(TRUE_HW, np.int32),
    }


def main():
    inputs = make_inputs()
    coder = faster_rcnn_box_coder.FasterRcnnBoxCoder(scale_factors=[10.0, 10.0, 5.0, 5.0])
    anchors = box_list.BoxList(tf.constant(inputs["anchors"]))
    boxes = tf.stack([coder.decode(tf.constant(offsets), anchors).get() for offsets in inputs["offsets"]])
    height, width = INPUT_HW
    windows = tf.constant([[0, 0, rows / height, columns / width] for rows, columns in TRUE_HW], tf.float32)
    results = dict(inputs)
    for name, text in CASES.items():
        config = text_format.Parse(text, post_processing_pb2.PostProcessing())
        suppress, convert = post_processing_builder.build(config)
        scores = convert(tf.constant(inputs["logits"]))[..., 1:]
        found = suppress(boxes[:, :, tf.newaxis], scores, clip_window=windows)
        results[f"{name}/boxes"], results[f"{name}/scores"], results[f"{name}/classes"] = (
            part.numpy() for part in found[:3]
        )
        results[f"{name}/num"] = found[-1].numpy()
        print(name, results[f"{name}/num"])
    np.savez_compressed(sys.argv[1], **results)


if __name__ == "__main__":
    main()
