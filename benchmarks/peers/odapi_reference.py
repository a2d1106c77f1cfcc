"""Compute reference values of one Object Detection API model; runs in the peer's environment (build_odapi.sh).

    python odapi_reference.py PIPELINE_CONFIG OUTPUT_FOLDER [--images FILE.npy] [--checkpoint PREFIX] [...]

Builds the model of the configuration, sets weights that depend only on their names (lively_weights.py; or those of
`--checkpoint`), and writes its results: a checkpoint in the layout of the model zoo, the preprocessed images,
predictions in inference and training mode, feature maps, targets, losses, gradients, moving statistics, detections.
Dropout and stochastic depth are off in training mode, because they are random. `--pack FILE.npz` also writes a small
file for the tests.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import odapi_keypoints as keypoints
import odapi_two_stage as two_stage
import tensorflow as tf
from google.protobuf import text_format
from lively_weights import SCALE_STEPS, batch_norm_key, lively_images, lively_value, variable_name
from object_detection.builders import model_builder
from object_detection.core import standard_fields
from object_detection.protos import pipeline_pb2
from tensorflow.core.protobuf import trackable_object_graph_pb2

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Overlapping, tiny and large boxes, one with weight 0.5; the last box of image 2 has the last class.
BOXES = (
    [[0.1, 0.2, 0.45, 0.6], [0.3, 0.55, 0.9, 0.98], [0.02, 0.02, 0.12, 0.1], [0.5, 0.1, 0.98, 0.4]],
    [[0.25, 0.25, 0.75, 0.75], [0.6, 0.05, 0.95, 0.3]],
)
WEIGHTS = ([1.0, 1.0, 1.0, 0.5], [1.0, 1.0])
CLASSES = ([0, 16, 44, 2], [89, 0])


STEP = 2.0**-12  # of rounded predictions: far below the compared precision, and two bytes instead of four
OPTIONAL_DETECTIONS = ("detection_masks", "detection_keypoints", "detection_keypoint_scores")
NOT_OUTPUTS = ("anchors", "final_anchors", "feature_maps", "preprocessed_inputs", "extracted_features")


def read_config(path, replacements, num_classes, size):
    text = Path(path).read_text()
    for old, new in replacements:
        if not re.search(old, text):
            raise SystemExit(f"--replace: nothing in {path} matches {old!r}")
        text = re.sub(old, new, text)
    config = text_format.Parse(text, pipeline_pb2.TrainEvalPipelineConfig())
    model = getattr(config.model, config.model.WhichOneof("model"))
    if num_classes:
        model.num_classes = num_classes
    if size:
        resizer = getattr(model.image_resizer, model.image_resizer.WhichOneof("image_resizer_oneof"))
        names = ("height", "width") if hasattr(resizer, "height") else ("min_dimension", "max_dimension")
        for name in names:
            setattr(resizer, name, size)
    return config, model.num_classes


def build(config, is_training, images, num_classes):
    """Return the model with its variables built, and the preprocessed images."""
    tf.keras.backend.clear_session()
    tf.keras.backend.set_learning_phase(is_training)
    model = model_builder.build(config.model, is_training=is_training)
    preprocessed, true_shapes = model.preprocess(tf.cast(images, tf.float32))
    if two_stage.is_two_stage(model) or keypoints.is_deepmac(
        model
    ):  # samples proposals, or predicts masks of the boxes
        give_groundtruth(model, num_classes, preprocessed.shape)
    model.predict(preprocessed, true_shapes)
    for module in model.submodules:
        if isinstance(module, tf.keras.layers.Dropout):
            module.rate = 0.0
    return model, preprocessed, true_shapes


def layout_of(model):
    """Return the checkpoint's layout: key -> our variable, key -> its name in the graph, and other content by key.

    Each variable is filled with a unique number, and a saved checkpoint shows under which key each number is stored.
    """
    variables = list({id(each): each for each in model.variables}.values())
    for number, variable in enumerate(variables):
        variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))
    with tempfile.TemporaryDirectory() as folder:
        reader = tf.train.load_checkpoint(tf.train.Checkpoint(model=model).save(folder + "/layout"))
        tensors = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(tensors[GRAPH_KEY])
    names = {each.checkpoint_key: each.full_name for node in graph.nodes for each in node.attributes}
    by_key = {
        key: variables[int(value.flat[0])]
        for key, value in tensors.items()
        if isinstance(value, np.ndarray) and value.dtype == np.float32
    }
    return by_key, names, {key: value for key, value in tensors.items() if key not in by_key}


def write_checkpoint(prefix, tensors):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    keys = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=keys, shape_and_slices=[""] * len(keys), tensors=[tensors[key] for key in keys]
    )
    (prefix.parent / "checkpoint").write_text(f'model_checkpoint_path: "{prefix.name}"\n')


def measure_input_scales(model, by_key, preprocessed, true_shapes):
    """Return the input size of each batch norm for `lively_value`, by `batch_norm_key`, from its statistics.

    The size is the root mean square, because the deviation is tiny in the deepest levels with few pixels.
    """
    keys = {id(variable): key for key, variable in by_key.items()}
    layers = [each for each in model.submodules if hasattr(each, "moving_variance")]
    for each in layers:
        for variable in (each.moving_mean, each.moving_variance):
            variable.assign(tf.zeros_like(variable))
    model.predict(preprocessed, true_shapes)
    scales = {}
    for each in layers:
        rate = 1 - float(each.momentum)
        square = float(tf.reduce_mean(each.moving_variance / rate + (each.moving_mean / rate) ** 2))
        size = np.sqrt(square) or 1.0  # 0: a layer without gradient path, as in EfficientDet's ImageNet head
        scales[batch_norm_key(keys[id(each.moving_variance)])] = int(np.round(SCALE_STEPS * np.log2(size)))
    return scales


def assign(by_key, tensors):
    for key, variable in by_key.items():
        variable.assign(tensors[key])


def outputs_of(model, prediction):
    """Return the raw predictions of any family, by name; those of hourglasses before the last are numbered."""
    if two_stage.is_two_stage(model):
        return two_stage.outputs_of(prediction)
    if hasattr(model, "_center_params"):
        outputs = {}
        for name in [name for name in prediction if name not in NOT_OUTPUTS]:
            *earlier, last = prediction[name]
            outputs[name.replace("/", "|")] = last.numpy()
            for number, value in enumerate(earlier, start=1):
                outputs[f"{name.replace('/', '|')}#{number}"] = value.numpy()
        return outputs
    return {name: prediction[name].numpy() for name in ("box_encodings", "class_predictions_with_background")}


def has_masks(model):
    return keypoints.is_deepmac(model) or (two_stage.is_two_stage(model) and model._number_of_stages == 3)


def give_groundtruth(model, num_classes, input_shape):
    with_keypoints = bool(getattr(model, "_kp_params_dict", None))
    classes = [np.asarray(each) % num_classes for each in (keypoints.CLASSES if with_keypoints else CLASSES)]
    model.provide_groundtruth(
        groundtruth_boxes_list=[tf.constant(each, tf.float32) for each in BOXES],
        groundtruth_classes_list=[tf.one_hot(each, num_classes) for each in classes],
        groundtruth_weights_list=[tf.constant(each, tf.float32) for each in WEIGHTS],
    )
    arrays = {}
    for number in range(len(BOXES)):
        arrays[f"boxes{number}"] = np.asarray(BOXES[number], np.float32)
        arrays[f"classes{number}"] = classes[number].astype(np.int64)
        arrays[f"weights{number}"] = np.asarray(WEIGHTS[number], np.float32)
    if has_masks(model):
        arrays.update(two_stage.give_masks(model, BOXES, input_shape))
    if keypoints.is_deepmac(model):
        keypoints.pad_groundtruth(model)
    if with_keypoints:
        arrays.update(keypoints.give_keypoints(model, BOXES, classes))
    return arrays


def targets_of(model, prediction):
    if hasattr(model, "_center_params"):
        return {}
    if two_stage.is_two_stage(model):
        return two_stage.targets_of(model, prediction)
    fields = standard_fields.BoxListFields
    values = model._assign_targets(
        model.groundtruth_lists(fields.boxes),
        model.groundtruth_lists(fields.classes),
        None,
        model.groundtruth_lists(fields.weights),
        None,
    )
    names = ("cls_targets", "cls_weights", "reg_targets", "reg_weights", "match")
    return {name: value.numpy() for name, value in zip(names, values)}  # noqa: B905 (Python 3.9)


def losses_of(model, prediction, true_shapes):
    losses = dict(model.loss(prediction, true_shapes))
    penalties = model.regularization_losses()
    if penalties:
        losses["Loss/regularization_loss"] = tf.add_n(penalties)
    return losses, len(penalties)


def run_training_mode(model, preprocessed, true_shapes, num_classes):
    give_groundtruth(model, num_classes, preprocessed.shape)
    with tf.GradientTape() as tape:
        prediction = model.predict(preprocessed, true_shapes)
        statistics = {id(each): each.numpy() for each in model.variables if not each.trainable}
        losses, num_penalties = losses_of(model, prediction, true_shapes)
        total = tf.add_n(list(losses.values()))
    variables = model.trainable_variables
    gradients = [tf.convert_to_tensor(each) if each is not None else None for each in tape.gradient(total, variables)]
    norm = tf.linalg.global_norm([each for each in gradients if each is not None])
    shown = {name: float(value) for name, value in losses.items()}
    shown.update({"Loss/total_loss": float(total), "grad_global_norm": float(norm)})
    shown["n_regularized_vars"] = num_penalties
    pairs = [(variable, gradients[number]) for number, variable in enumerate(variables)]
    return prediction, shown, pairs, statistics


def rounded(value):
    """Return a value that needs few bytes; nested as `predict` returns it."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return tf.round(value / STEP) * STEP


def run_inference_mode(model, preprocessed, true_shapes, num_classes, is_rounded):
    """Return predictions, losses, targets and detections; losses and detections use the rounded predictions."""
    prediction = model.predict(preprocessed, true_shapes)
    is_two_stage = two_stage.is_two_stage(model)
    if is_rounded:
        names = (
            two_stage.names_of(prediction) if is_two_stage else [name for name in prediction if name not in NOT_OUTPUTS]
        )
        prediction.update({name: rounded(prediction[name]) for name in names})
        if two_stage.MASKS in prediction:
            two_stage.detect_again(model, prediction, true_shapes)
    groundtruth = give_groundtruth(model, num_classes, preprocessed.shape)
    losses, num_penalties = losses_of(model, prediction, true_shapes)
    shown = {name: float(value) for name, value in losses.items()}
    shown["n_regularized_vars"] = num_penalties
    is_center_net = hasattr(model, "_center_params")
    levels = prediction["extracted_features" if is_center_net else "feature_maps"]
    detections = {name: value.numpy() for name, value in model.postprocess(prediction, true_shapes).items()}
    proposals = {}
    if is_two_stage:
        of_stored = two_stage.proposals_of_outputs(model, prediction, true_shapes)
        proposals = {"proposals_eval": two_stage.proposals_of(prediction), "proposals_of_stored": of_stored}
    return {
        "groundtruth": groundtruth,
        "targets": targets_of(model, prediction),
        **proposals,
        "predictions_eval": {
            **({} if is_center_net else {"anchors": prediction["anchors"].numpy()}),
            **outputs_of(model, prediction),
        },
        "feature_maps_eval": {f"level{number}": value.numpy() for number, value in enumerate(levels)},
        "detections": {name: value for name, value in detections.items() if name != "raw_detection_scores"},
    }, shown


def weights_of(by_key, scales, checkpoint):
    if checkpoint:
        reader = tf.train.load_checkpoint(checkpoint)
        return {key: reader.get_tensor(key) for key in by_key}
    return {key: lively_value(key, tuple(variable.shape), scales) for key, variable in by_key.items()}


def thinned(arrays, stride):
    """Return every `stride`-th anchor or row; short arrays stay complete."""
    return {
        name: value[:, ::stride] if value.ndim >= 3 and value.shape[1] > 4 * stride else value
        for name, value in arrays.items()
    }


def pack(path, config, scales, parts, summary, by_variable, stride, is_thin):
    """Return the content of the tests' file; with `is_thin`, subsample inference mode too and omit detections."""
    arrays = {"predictions_train": parts[f"predictions_train_stride{stride}"], "targets": parts["targets"]}
    arrays = {
        f"{part}/{name}": np.round(value / STEP).astype(np.int32) if part.startswith("predictions") else value
        for part, values in arrays.items()
        for name, value in values.items()
    }
    anchors = parts["predictions_eval"].pop("anchors", None)
    if anchors is not None:
        arrays["anchors"] = anchors[::stride]
    predictions = parts["predictions_eval"]
    for name, value in (thinned(predictions, stride) if is_thin else predictions).items():
        arrays[f"predictions_eval/{name}"] = np.round(value / STEP).astype(np.int32)
    if not is_thin:
        names = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")
        names += tuple(name for name in OPTIONAL_DETECTIONS if name in parts["detections"])
        arrays.update({f"detections/{name}": parts["detections"][name] for name in names})
    for part in ("groundtruth", *two_stage.PARTS):
        arrays.update({f"{part}/{name}": value for name, value in parts.get(part, {}).items()})
    arrays["preprocessed"] = parts["preprocessed"]["preprocessed"][:, ::stride, ::stride]
    arrays["true_image_shapes"] = parts["preprocessed"]["true_image_shapes"]
    arrays["input_scales/values"] = np.asarray(list(scales.values()), np.int8)
    for part, values in by_variable.items():
        arrays[f"{part}/values"] = np.asarray(list(values.values()), np.float32)
    for name, text in (
        ("pipeline.config", text_format.MessageToString(config)),
        *((f"{part}/keys", "\n".join(values)) for part, values in (("input_scales", scales), *by_variable.items())),
        ("summary.json", json.dumps({**summary, "stride": stride, "is_thin": is_thin})),
    ):
        arrays[name] = np.frombuffer(text.encode(), np.uint8)
    np.savez_compressed(path, **arrays)


def write_folder(folder, config, parts, by_key, names, gradients, extra, tensors):
    for part, arrays in parts.items():
        if arrays:
            np.savez_compressed(folder / f"{part}.npz", **arrays)
    (folder / "pipeline.config").write_text(text_format.MessageToString(config))
    write_checkpoint(folder / "checkpoint/ckpt-0", {**extra, **tensors})
    rows = ["key\tshape\tdtype\tvariable_name", f"{GRAPH_KEY}\t[]\tstring\t"]
    rows += [f"{key}\t{list(by_key[key].shape)}\tfloat32\t{names[key]}" for key in sorted(by_key)]
    (folder / "checkpoint_keys.tsv").write_text("\n".join(rows) + "\n")
    rows = [
        f"{number}\t{variable.name}\t{list(variable.shape)}\t"
        + ("none\tnone" if each is None else f"{float(tf.norm(each)):.9g}\t{float(tf.reduce_sum(each)):.9g}")
        for number, (variable, each) in enumerate(gradients)
    ]
    (folder / "grad_norms_train.tsv").write_text("\n".join(rows) + "\n")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("output", type=Path)
    parser.add_argument("--images", type=Path, help="uint8 [B, H, W, 3]; default: two generated images of --image-hw")
    parser.add_argument("--image-hw", type=int, nargs=2, default=(96, 128))
    parser.add_argument("--checkpoint", help="prefix of a checkpoint with the weights")
    parser.add_argument("--size", type=int, help="both sides of the resizer's output")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--stride", type=int, default=7, help="every n-th anchor of the training mode's predictions")
    parser.add_argument("--replace", nargs=2, action="append", default=[], metavar=("REGEX", "TEXT"))
    parser.add_argument("--pack", type=Path, help="file for the tests; losses and detections use rounded predictions")
    parser.add_argument("--thin", action="store_true", help="write less to the tests' file")
    return parser.parse_args()


def main():
    args = parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    config, num_classes = read_config(args.config, args.replace, args.classes, args.size)
    images = np.load(args.images) if args.images else lively_images(2, *args.image_hw)
    if keypoints.has_keypoints(config):
        keypoints.configure_label_map(config)

    model, preprocessed, true_shapes = build(config, True, images, num_classes)
    by_key, names, extra = layout_of(model)
    assign(by_key, weights_of(by_key, {}, args.checkpoint))
    scales = {} if args.checkpoint else measure_input_scales(model, by_key, preprocessed, true_shapes)
    tensors = weights_of(by_key, scales, args.checkpoint)
    assign(by_key, tensors)
    prediction, train_losses, gradients, statistics = run_training_mode(model, preprocessed, true_shapes, num_classes)
    train_predictions = thinned(outputs_of(model, prediction), args.stride)
    keys = {id(variable): key for key, variable in by_key.items()}
    moved = {key: statistics[id(variable)] for key, variable in by_key.items() if not variable.trainable}
    moved = {key: value for key, value in moved.items() if variable_name(key).startswith("moving_")}
    momentum = {
        (float(each.momentum), float(each.epsilon)) for each in model.submodules if hasattr(each, "moving_mean")
    }
    summary = {
        "tf": tf.__version__,
        "trainable_params": int(sum(np.prod(each.shape) for each in model.trainable_variables)),
        "n_trainable_vars": len(model.trainable_variables),
        "moving_stat_params": int(sum(value.size for value in moved.values())),
        "n_bn": len(moved) // 2,
        "n_ckpt_keys": len(by_key) + len(extra),
        "bn_momentum_eps": sorted(momentum),
        "dropout": "off",
        "losses_train_mode": train_losses,
    }
    by_variable = {
        "gradient_norms": {
            keys[id(variable)]: float(tf.norm(each)) for variable, each in gradients if each is not None
        },
        "moved_means": {key: float(value.mean()) for key, value in moved.items()},
    }

    eval_model, preprocessed, true_shapes = build(config, False, images, num_classes)
    eval_by_key, _, _ = layout_of(eval_model)
    assign(eval_by_key, tensors)
    parts, summary["losses_eval_mode"] = run_inference_mode(
        eval_model, preprocessed, true_shapes, num_classes, args.pack is not None
    )
    summary["spread"] = {
        name: [float(each.mean()), float(each.std())] for name, each in parts["predictions_eval"].items()
    }
    summary["input_scales"] = scales
    parts[f"predictions_train_stride{args.stride}"] = train_predictions
    if two_stage.is_two_stage(model):
        parts["proposals_train"] = two_stage.proposals_of(prediction)
    if keypoints.has_keypoints(config):
        keypoints.forget_label_map(config)
    parts["preprocessed"] = {"preprocessed": preprocessed.numpy(), "true_image_shapes": true_shapes.numpy()}
    # Keyed by the variable's name if it is unique, as in the folders of shared reference values.
    parts["moving_stats_after_train_forward"] = {
        f"{names[key].replace('/', '|')}:0#{number}": value for number, (key, value) in enumerate(moved.items())
    }
    write_folder(args.output, config, parts, by_key, names, gradients, extra, tensors)
    (args.output / "summary.json").write_text(json.dumps(summary, indent=1))
    (args.output / "by_key.json").write_text(json.dumps(by_variable, indent=1))
    if args.pack:
        summary["image_hw"] = list(images.shape[1:3])
        del summary["input_scales"]
        pack(args.pack, config, scales, parts, summary, by_variable, args.stride, args.thin)
    print(json.dumps({"spread": summary["spread"], "eval": summary["losses_eval_mode"], "train": train_losses}))


if __name__ == "__main__":
    main()
