"""Time parts of the Object Detection API's training step on request; runs in the peer's environment (build_odapi.sh).

    python odapi_train_step.py PIPELINE_CONFIG RECORDS LABEL_MAP

Prints a line of JSON when everything is traced, then one line per request: `PART COUNT` returns the seconds of that
many calls. Parts: full, network, losses, optimizer, input. The configuration sets model, optimizer and input; the step
is the peer's own `eager_train_step`.
"""

import sys

import tensorflow as tf
from google.protobuf import text_format
from object_detection import inputs, model_lib, model_lib_v2
from object_detection.builders import model_builder, optimizer_builder
from object_detection.core import box_list_ops
from object_detection.protos import pipeline_pb2
from timed_process import answer_requests

OUTPUTS = {
    "ssd": ("box_encodings", "class_predictions_with_background"),
    "center_net": ("object_center", "box/scale", "box/offset"),
    "faster_rcnn": (
        "rpn_box_encodings",
        "rpn_objectness_predictions_with_background",
        "refined_box_encodings",
        "class_predictions_with_background",
    ),
}


def read_config(path, records, label_map):
    with open(path) as file:
        config = text_format.Parse(file.read(), pipeline_pb2.TrainEvalPipelineConfig())
    config.train_config.fine_tune_checkpoint = ""
    config.train_input_reader.shuffle = False
    config.train_input_reader.label_map_path = label_map
    del config.train_input_reader.tf_record_input_reader.input_path[:]
    config.train_input_reader.tf_record_input_reader.input_path.append(records)
    return config


class Parts:
    def __init__(self, config):
        tf.keras.backend.set_learning_phase(True)
        self.kind = config.model.WhichOneof("model")
        self.outputs = OUTPUTS[self.kind]
        self.model = model_builder.build(config.model, is_training=True)
        dataset = inputs.train_input(config.train_config, config.train_input_reader, config.model, model=self.model)
        self.iterator = iter(dataset)
        self.features, self.labels = next(self.iterator)
        self.step = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.optimizer, _ = optimizer_builder.build(config.train_config.optimizer, global_step=self.step)
        self.unpads = config.train_config.unpad_groundtruth_tensors
        self.clip = config.train_config.gradient_clipping_by_norm
        prediction = self.predict()
        self.prediction = prediction if self.kind == "faster_rcnn" else {}
        self.answers = self.outputs_of(prediction)
        levels = prediction["feature_maps"] if self.kind == "ssd" else []
        self.level_shapes = [tuple(each.shape[1:3]) for each in levels]
        self.gradients = [tf.zeros_like(each) for each in self.model.trainable_variables]
        self.functions = {
            name: tf.function(getattr(self, name)) for name in ("full", "network", "losses", "optimizer_alone")
        }

    def predict(self):
        """Run the network; with two stages, it samples proposals by the ground truth."""
        if self.kind == "faster_rcnn":
            self.provide_labels()
        return self.model.predict(self.features["image"], self.features["true_image_shape"])

    def provide_labels(self):
        labels = model_lib.unstack_batch(dict(self.labels), unpad_groundtruth_tensors=self.unpads)
        model_lib.provide_groundtruth(self.model, labels)

    def outputs_of(self, prediction):
        """Return the outputs in one list; those of CenterNet are lists of one."""
        if self.kind == "center_net":
            return [prediction[name][-1] for name in self.outputs]
        return [prediction[name] for name in self.outputs]

    def full(self):
        return model_lib_v2.eager_train_step(
            self.model,
            self.features,
            dict(self.labels),
            self.unpads,
            self.optimizer,
            training_step=self.step,
            clip_gradients_value=self.clip or None,
        )["Loss/total_loss"]

    def network(self):
        with tf.GradientTape() as tape:
            total = tf.add_n([tf.reduce_sum(each) for each in self.outputs_of(self.predict())])
        gradients = tape.gradient(total, self.model.trainable_variables)
        return total + tf.add_n([tf.reduce_sum(each) for each in gradients if each is not None])

    def losses(self):
        """Compute targets and losses, and their gradient with respect to the network's outputs."""
        self.provide_labels()
        height, width = self.features["image"].shape[1:3]
        if self.kind == "ssd":
            anchors = self.model._anchor_generator.generate(self.level_shapes, im_height=height, im_width=width)
            self.model._anchors = box_list_ops.concatenate(anchors)
        with tf.GradientTape() as tape:
            tape.watch(self.answers)
            answers = [[each] for each in self.answers] if self.kind == "center_net" else self.answers
            prediction = {**self.prediction, **dict(zip(self.outputs, answers))}  # noqa: B905 (Python 3.9)
            if self.kind == "center_net":
                prediction["preprocessed_inputs"] = self.features["image"]
            losses = self.model.loss(prediction, self.features["true_image_shape"])
            total = tf.add_n(list(losses.values()))
        return total + tf.add_n([tf.reduce_sum(each) for each in tape.gradient(total, self.answers)])

    def optimizer_alone(self):
        gradients = self.gradients
        if self.clip:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))  # noqa: B905 (Python 3.9)

    def call(self, part):
        if part == "input":
            next(self.iterator)
            return
        result = self.functions["optimizer_alone" if part == "optimizer" else part]()
        if result is not None:
            result.numpy()


def main():
    parts = Parts(read_config(*sys.argv[1:4]))
    for part in ("full", "network", "losses", "optimizer", "input"):
        parts.call(part)
    answer_requests(parts.call, num_variables=len(parts.model.trainable_variables))


if __name__ == "__main__":
    main()
