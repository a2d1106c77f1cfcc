"""Time the Object Detection API's exported model on request; runs in the peer's environment (build_odapi.sh).

    python odapi_inference.py PIPELINE_CONFIG CHECKPOINT IMAGES_NPY OUTPUT_FOLDER

With "" as the checkpoint, the weights are random. Prints a line of JSON when the model is exported, loaded and has run
once, then one line per request: `exported BATCH_SIZE COUNT` returns the seconds of that many calls. Its model processes
one image per call, so a batch is as many calls.
"""

import os
import sys

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from object_detection import exporter_lib_v2
from object_detection.builders import model_builder
from object_detection.protos import pipeline_pb2
from timed_process import answer_requests


def export(config_path, checkpoint, output):
    with open(config_path) as file:
        config = text_format.Parse(file.read(), pipeline_pb2.TrainEvalPipelineConfig())
    model = model_builder.build(config.model, is_training=False)
    model.predict(*model.preprocess(tf.zeros([1, 480, 640, 3])))
    if checkpoint:
        tf.train.Checkpoint(model=model).restore(checkpoint).expect_partial()
    weights = os.path.join(output, "weights")
    tf.train.CheckpointManager(tf.train.Checkpoint(model=model), weights, max_to_keep=1).save()
    exporter_lib_v2.export_inference_graph("image_tensor", config, weights, os.path.join(output, "exported"))
    return tf.saved_model.load(os.path.join(output, "exported", "saved_model"))


def main():
    config_path, checkpoint, images_path, output = sys.argv[1:5]
    signature = export(config_path, checkpoint, output).signatures["serving_default"]
    images = np.load(images_path)

    def call(batch_size):
        for i in range(batch_size):
            signature(input_tensor=tf.constant(images[i % len(images)][np.newaxis]))["detection_boxes"].numpy()

    call(1)
    answer_requests(lambda _, batch_size: call(int(batch_size)))


if __name__ == "__main__":
    main()
