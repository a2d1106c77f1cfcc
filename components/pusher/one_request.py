"""A program of its own: load a SavedModel, run one small picture through it, print one line of JSON.

It is run with TensorFlow alone, in a process of its own: what a server does. Nothing of detloom is imported; the names
that it needs come as JSON in its second argument.
"""

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

# Lines of TensorFlow's errors; what comes after the reason are the graph's nodes.
_BEFORE_THE_REASON = ("Graph execution error:", "Detected at node", "<stack traces unavailable>")
_SIDE = 64  # of the picture where the model leaves its size open


def make_request(spec: tf.TensorSpec, is_encoded: bool) -> tf.Tensor:
    """One picture for the signature's input: encoded, or pixels of the size it asks for."""
    sizes = [size or default for size, default in zip(spec.shape.as_list(), (1, _SIDE, _SIDE, 3), strict=False)]
    if not is_encoded:
        return tf.cast(tf.fill(sizes, 128), spec.dtype)
    picture = tf.io.encode_png(tf.fill([_SIDE, _SIDE, 3], tf.constant(128, tf.uint8)))
    return tf.fill(sizes, picture)


def find_fault(model_dir: str, inputs: dict[str, str], outputs: list[str]) -> str:
    """Why the model cannot be served, or nothing.

    Args:
        inputs: signatures to try, the first that is there counts, with the name of their input; encoded images first.
    """
    model = tf.saved_model.load(model_dir)
    signature = next((name for name in inputs if name in model.signatures), None)
    if signature is None:
        return f"it has none of the signatures {', '.join(inputs)}"
    call: Any = model.signatures[signature]
    specs = call.structured_input_signature[1]
    if list(specs) != [inputs[signature]]:
        return f"the signature {signature} takes {sorted(specs)}, not {inputs[signature]}"
    spec = specs[inputs[signature]]
    answers = call(**{inputs[signature]: make_request(spec, spec.dtype == tf.string)})
    missing = [name for name in outputs if name not in answers]
    if missing:
        return f"the signature {signature} does not answer with {', '.join(missing)}"
    strange = [name for name in outputs if not np.isfinite(np.asarray(answers[name], np.float64)).all()]
    return f"its answer holds numbers that are not finite in {', '.join(strange)}" if strange else ""


if __name__ == "__main__":
    sys.modules["detloom"] = None  # type: ignore[assignment]  # a model that needs our code is not served elsewhere
    names = json.loads(sys.argv[2])
    try:
        fault = find_fault(sys.argv[1], names["inputs"], names["outputs"])
    except Exception as error:  # whatever it is, the model cannot be served
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(_BEFORE_THE_REASON)]
        fault = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    print(json.dumps({"fault": fault}))
