"""A program that loads a SavedModel and its ONNX file, runs small images through them and prints one line of JSON.

Like model servers, it uses TensorFlow and ONNX Runtime only and imports nothing of detloom; the names that it needs are
passed as JSON in its second argument.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Lines of TensorFlow's error messages that precede the reason.
_BEFORE_THE_REASON = ("Graph execution error:", "Detected at node", "<stack traces unavailable>")
_NUM_IMAGES = 2  # in a batch of the ONNX file
_SIDE = 64  # height and width of the image if the signature leaves them open


def make_request(spec: tf.TensorSpec, is_encoded: bool) -> tf.Tensor:
    """Return one image for the signature's input: encoded, or pixels of the required size."""
    sizes = [size or default for size, default in zip(spec.shape.as_list(), (1, _SIDE, _SIDE, 3), strict=False)]
    if not is_encoded:
        return tf.cast(tf.fill(sizes, 128), spec.dtype)
    image = tf.io.encode_png(tf.fill([_SIDE, _SIDE, 3], tf.constant(128, tf.uint8)))
    return tf.fill(sizes, image)


def find_fault(model_dir: str, inputs: dict[str, str], outputs: list[str]) -> str:
    """Return the reason why the model cannot be served; empty if it can.

    Args:
        inputs: input name by signature; the first signature that the model has is used.
    """
    model = tf.saved_model.load(model_dir)
    signature = next((name for name in inputs if name in model.signatures), None)
    if signature is None:
        return f"it has none of the signatures {', '.join(inputs)}"
    call: Any = model.signatures[signature]
    specs = call.structured_input_signature[1]
    if list(specs) != [inputs[signature]]:
        return f"the signature {signature} has the inputs {sorted(specs)}, not {inputs[signature]}"
    spec = specs[inputs[signature]]
    answers = call(**{inputs[signature]: make_request(spec, spec.dtype == tf.string)})
    missing = [name for name in outputs if name not in answers]
    if missing:
        return f"the signature {signature} has no output {', '.join(missing)}"
    return find_nonfinite(answers, f"the signature {signature}")


def find_nonfinite(answers: Mapping[str, Any], model: str) -> str:
    """Name the outputs that are not finite, also of masks and keypoints; empty if all are finite."""
    nonfinite = [name for name, value in answers.items() if not np.isfinite(np.asarray(value, np.float64)).all()]
    return f"the outputs {', '.join(nonfinite)} of {model} contain NaN or infinity" if nonfinite else ""


def find_onnx_fault(path: str, allowed_outputs: list[list[str]]) -> str:
    """Return the reason why ONNX Runtime cannot run the ONNX file on two images; empty if it can."""
    import onnxruntime  # late, because other models do not need it

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (spec,) = session.get_inputs()
    sizes = zip(spec.shape, (_NUM_IMAGES, _SIDE, _SIDE, 3), strict=True)
    shape = [size if isinstance(size, int) else default for size, default in sizes]
    images = np.full(shape, 128, np.uint8 if spec.type == "tensor(uint8)" else np.float32)
    names = [output.name for output in session.get_outputs()]
    if not any(set(outputs) <= set(names) for outputs in allowed_outputs):
        return f"the ONNX file has the outputs {', '.join(names)}, not those of a detector"
    answers = dict(zip(names, session.run(names, {spec.name: images}), strict=True))
    wrong = [name for name, value in answers.items() if value.shape[:1] != (_NUM_IMAGES,)]
    if wrong:
        return f"the ONNX file returns {', '.join(wrong)} for another number of images than it gets"
    return find_nonfinite(answers, "the ONNX file")


if __name__ == "__main__":
    sys.modules["detloom"] = None  # type: ignore[assignment]  # a model that needs detloom cannot be served elsewhere
    names = json.loads(sys.argv[2])
    try:
        fault = find_fault(sys.argv[1], names["inputs"], names["outputs"])
        if not fault and os.path.exists(onnx_path := os.path.join(sys.argv[1], names["onnx_file"])):
            fault = find_onnx_fault(onnx_path, names["onnx_outputs"])
    except Exception as error:  # any error means that the model cannot be served
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(_BEFORE_THE_REASON)]
        fault = f"{type(error).__name__}: {lines[0] if lines else 'unknown error'}"
    print(json.dumps({"fault": fault}))
