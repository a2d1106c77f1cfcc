"""Run the Object Detection API's own training loop, or detection; runs in the peer's environment (build_odapi.sh).

    python odapi_train.py train PIPELINE_CONFIG MODEL_DIR NUM_STEPS STEPS_PER_CHECKPOINT SEED
    python odapi_train.py detect PIPELINE_CONFIG RECORDS OUTPUT_DIR CHECKPOINT...

`train` runs `model_lib_v2.train_loop` unchanged; its start time is written to MODEL_DIR/started.json, the time of each
checkpoint is its file's time, and MODEL_DIR/train has the losses of the last step of each call. The configuration names
records and label map. `detect` writes, for each checkpoint, the
detections in the images of RECORDS, in their order, to OUTPUT_DIR/STEP.json as COCO results; with
`use_moving_averages` it uses the averaged weights, as the peer's `eval_continuously` does.
"""

import json
import os
import sys
import time

import tensorflow as tf
from google.protobuf import text_format
from object_detection import model_lib_v2
from object_detection.builders import model_builder, optimizer_builder
from object_detection.protos import pipeline_pb2

STEPS_PER_CALL = 100  # the peer's own default


def train(config_path, model_dir, num_steps, steps_per_checkpoint, seed):
    tf.random.set_seed(seed)
    os.makedirs(model_dir)
    with open(os.path.join(model_dir, "started.json"), "w") as file:
        json.dump({"time": time.time()}, file)
    model_lib_v2.train_loop(
        config_path,
        model_dir,
        train_steps=num_steps,
        checkpoint_every_n=steps_per_checkpoint,
        checkpoint_max_to_keep=num_steps // steps_per_checkpoint + 1,
        record_summaries=False,
        num_steps_per_iteration=min(STEPS_PER_CALL, steps_per_checkpoint),
    )


class Model:
    """Yield the peer's inference model with the weights of each checkpoint in turn."""

    def __init__(self, config_path):
        with open(config_path) as file:
            config = text_format.Parse(file.read(), pipeline_pb2.TrainEvalPipelineConfig())
        self.model = model_builder.build(config.model, is_training=False)
        self.detect(tf.zeros([1, 480, 640, 3]))
        self.step = tf.Variable(0, dtype=tf.int64)
        parts = {"step": self.step, "model": self.model}
        self.averages = None
        if config.eval_config.use_moving_averages:
            self.averages, _ = optimizer_builder.build(config.train_config.optimizer, global_step=self.step)
            self.averages.shadow_copy(self.model)
            parts["optimizer"] = self.averages
        self.checkpoint = tf.train.Checkpoint(**parts)
        self.compiled = tf.function(self.detect, input_signature=[tf.TensorSpec([1, None, None, 3])])

    def detect(self, image):
        preprocessed, true_shapes = self.model.preprocess(image)
        return self.model.postprocess(self.model.predict(preprocessed, true_shapes), true_shapes)

    def restore(self, checkpoint):
        self.checkpoint.restore(checkpoint).expect_partial()
        if self.averages is not None:
            self.averages.assign_average_vars(self.model.trainable_variables)
        return int(self.step.numpy())


def read_images(records):
    for record in tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(records))):
        example = tf.train.Example.FromString(record.numpy())
        yield tf.io.decode_image(example.features.feature["image/encoded"].bytes_list.value[0], 3)


def results_of(model, images):
    """Return COCO results; an image's id is its number, starting at 1."""
    results = []
    for number, image in enumerate(images, start=1):
        height, width = image.shape[:2]
        found = {name: value[0].numpy() for name, value in model.compiled(tf.cast(image, tf.float32)[None]).items()}
        for i in range(int(found["num_detections"])):
            ymin, xmin, ymax, xmax = (float(value) for value in found["detection_boxes"][i])
            results.append(
                {
                    "image_id": number,
                    "category_id": int(found["detection_classes"][i]) + 1,
                    "bbox": [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height],
                    "score": float(found["detection_scores"][i]),
                }
            )
    return results


def detect(config_path, records, output_dir, *checkpoints):
    os.makedirs(output_dir, exist_ok=True)
    model = Model(config_path)
    images = list(read_images(records))
    for checkpoint in checkpoints:
        step = model.restore(checkpoint)
        with open(os.path.join(output_dir, f"{step}.json"), "w") as file:
            json.dump(results_of(model, images), file)
        print(checkpoint, step, flush=True)


def main():
    what, *rest = sys.argv[1:]
    if what == "train":
        config_path, model_dir, *counts = rest
        train(config_path, model_dir, *(int(each) for each in counts))
    else:
        detect(*rest)


if __name__ == "__main__":
    main()
