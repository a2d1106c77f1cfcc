"""Run a SavedModel with TensorFlow: the model that is evaluated and served, not the model in memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.runtime import ContractRuntime, FailedCallError, check_outputs
from detloom.trainer_module.weights.checkpoint_index import check_index

_NUMBERS = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)  # types that an output may have
_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_ENCODED]


class SavedModelRuntime(ContractRuntime):
    """A loaded SavedModel, called with encoded images (`serving_encoded`), which it decodes itself."""

    def __init__(self, model_dir: str) -> None:
        """Load the model; see `check_signature` for errors."""
        super().__init__(model_dir)
        check_signature(model_dir, names.SIGNATURE_ENCODED)
        self._model, self._signature = _load(model_dir)  # kept alive: the model owns the variables

    def call(self, images: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        """See `ContractRuntime`."""
        try:
            tensors = self._signature(**{_INPUT: tf.constant([image.encoded for image in images])})
        except tf.errors.OpError as error:
            is_refusal = isinstance(error, tf.errors.InvalidArgumentError)
            raise FailedCallError(_reason_of_failed_call(error), is_refusal=is_refusal) from None
        outputs = {name: tensors[name].numpy() for name in names.OUTPUTS if name in tensors}
        check_outputs(outputs, names.OUTPUTS, {"B": len(images)})
        return outputs


def _load(model_dir: str) -> tuple[Any, Callable[..., Any]]:
    """Return a SavedModel, which owns the variables, and its signature; InputError if a file is missing or damaged."""
    try:
        if tf.io.gfile.exists(f"{model_dir}/variables/variables.index"):  # not in a model without variables
            check_index(f"{model_dir}/variables/variables")
        model = tf.saved_model.load(model_dir)
        return model, model.signatures[names.SIGNATURE_ENCODED]
    except Exception as error:  # TensorFlow raises errors of many types for a damaged file
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{model_dir}: the SavedModel cannot be loaded ({cause}).") from None


def check_signature(model_dir: str, signature: str) -> None:
    """Check for a signature with its input and outputs; reads only the head of the SavedModel.

    Raises:
        InputError: if there is no SavedModel, or it lacks the signature, the input or an output.
    """
    signatures = read_signatures(model_dir)
    if signature not in signatures:
        known = sorted(signatures)
        raise InputError(f"{model_dir}: the SavedModel has no signature '{signature}', only {known}; export it again.")
    expected, inputs = names.SIGNATURE_INPUTS[signature], sorted(signatures[signature].inputs)
    missing = sorted(set(names.OUTPUT_NAMES) - set(signatures[signature].outputs))
    if inputs != [expected] or missing:
        detail = f"lacks the outputs {missing}" if missing else f"takes {inputs}, not ['{expected}']"
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")
    if detail := _find_other_type(signatures[signature], signature):
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")


def _find_other_type(definition: Any, signature: str) -> str:
    """Return the first input or output with another type or number of dimensions than the contract; "" if none has."""
    known = [name for name in names.OUTPUTS if name in definition.outputs]
    checks: list[tuple[str, Any, tuple[str | int, ...], str, tuple[tf.DType, ...]]]
    checks = [(name, definition.outputs[name], names.OUTPUTS[name].shape, "numbers", _NUMBERS) for name in known]
    if signature != names.SIGNATURE_IMAGES:
        checks += [(name, info, ("B",), "text", (tf.string,)) for name, info in definition.inputs.items()]
    for name, info, shape, kind, types in checks:
        num_dimensions = None if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        if num_dimensions not in (None, len(shape)) or all(info.dtype != each.as_datatype_enum for each in types):
            got = f"type {info.dtype} with {num_dimensions} dimensions"
            return f"has {name} of {got}, not {kind} [{', '.join(map(str, shape))}]"
    return ""


def read_signatures(model_dir: str) -> dict[str, Any]:
    """Return the SignatureDef of each served signature, by name; reads only the head of the SavedModel.

    Raises:
        InputError: if there is no SavedModel.
    """
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    saved_model = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            saved_model.ParseFromString(file.read())
    except tf.errors.OpError:
        raise InputError(f"{model_dir}: no SavedModel ({names.SAVED_MODEL_FILE} cannot be read).") from None
    except DecodeError:
        raise InputError(f"{path}: not a SavedModel; export the model again.") from None
    graphs = [graph.signature_def for graph in saved_model.meta_graphs if "serve" in graph.meta_info_def.tags]
    return {name: graph[name] for graph in graphs[:1] for name in graph if not name.startswith("__")}


def _reason_of_failed_call(error: tf.errors.OpError) -> str:
    """Return the line of TensorFlow's message that states the reason: the last one before the names of nodes."""
    lines = str(error).partition("[[{{node")[0].strip().splitlines()
    return (lines or [type(error).__name__])[-1].strip()[:200]
