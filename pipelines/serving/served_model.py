"""A SavedModel behind its signatures: one call at a time, images checked before it sees them."""

import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.pipelines.serving.image_limits import check_images
from detloom.pipelines.serving.predict_request import (
    Arrays,
    Signature,
    format_predict_answer,
    parse_predict_request,
)
from detloom.pipelines.serving.tensors import RequestError, TensorSpec
from detloom.schemas import detections as names
from detloom.schemas import example_keys
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.predict import find_saved_model, has_pixel_boxes, read_exported_label_map, read_signatures

_MAX_WAIT_SECONDS = 60.0  # for the requests before; whoever sent this one has given up by then


class ServedModel:
    """One version of a model.

    Attributes:
        version: the number of its folder; 1 where that is none.
        label_map: None where the SavedModel has none in its assets.
        signatures: those that are served, by name.
        definitions: the SignatureDef of each, for the metadata.
        has_pixel_boxes: whether it says boxes in pixels instead of shares of the picture.
    """

    def __init__(self, model_dir: Path, name: str) -> None:
        """Load the SavedModel.

        Raises:
            InputError: it cannot be loaded, or has no signature that can be served.
        """
        self.name, self.version = name, int(model_dir.name) if model_dir.name.isdecimal() else 1
        found = read_signatures(str(model_dir))
        self.definitions = {key: definition for key, definition in found.items() if _is_servable(key, definition)}
        if not self.definitions:
            raise InputError(f"{model_dir}: got the signatures {sorted(found)}, of which none takes pictures.")
        self.signatures = {key: _read_signature(definition) for key, definition in self.definitions.items()}
        self.label_map = _find_label_map(str(model_dir))
        self.has_pixel_boxes = has_pixel_boxes(str(model_dir))
        try:
            self._model = tf.saved_model.load(str(model_dir))  # kept: its variables live as long as it does
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise InputError(f"{model_dir}: the SavedModel cannot be loaded ({_first_line(error)}).") from None
        self._lock = threading.Lock()

    def answer(self, body: bytes) -> tuple[dict[str, Any], float]:
        """The answer to the body of a `:predict` request as plain values for JSON, and the seconds that the model took.

        One request at a time, its parsing too: JSON takes up to fifty times its size in memory (nested lists).

        Raises:
            RequestError: for whoever sent it.
        """
        if not self._lock.acquire(timeout=_MAX_WAIT_SECONDS):
            message = f"the model was busy for {_MAX_WAIT_SECONDS:.0f} s; try again."
            raise RequestError(message, HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            request = parse_predict_request(body, self.signatures)
            inputs = _check_images(request.signature_name, request.inputs)
            started = time.perf_counter()
            outputs = self._call(request.signature_name, inputs)
            seconds = time.perf_counter() - started
            return format_predict_answer(outputs, is_row=request.is_row), seconds
        finally:
            self._lock.release()

    def wait_until_idle(self, timeout_seconds: float) -> None:
        """Let the call in progress end, the last one; a process that ends in the middle of one may crash."""
        self._lock.acquire(timeout=timeout_seconds)

    def _call(self, signature_name: str, inputs: Arrays) -> Arrays:
        specs = self.signatures[signature_name].inputs
        tensors = {
            name: tf.constant(array.tolist() if specs[name].kind == "text" else array, shape=array.shape)
            for name, array in inputs.items()
        }
        try:
            outputs = self._model.signatures[signature_name](**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise RequestError(f"the model refuses the input ({_first_line(error)}).") from None
        except tf.errors.OpError as error:
            message = f"the model failed ({_first_line(error)})."
            raise RequestError(message, HTTPStatus.INTERNAL_SERVER_ERROR) from None
        return {name: _to_array(outputs[name]) for name in self.signatures[signature_name].outputs}


def load_served_model(model: Path, name: str) -> ServedModel:
    """Load what `find_saved_model` finds.

    Raises:
        InputError: one sentence that names the folder and what is wrong with it.
    """
    return ServedModel(find_saved_model(model).resolve(), name)


def _is_servable(name: str, definition: Any) -> bool:
    """Whether its inputs can be checked: numbers, whose size is the request's, or bytes that are known to be images."""
    has_text = any(tf.as_dtype(each.dtype) == tf.string for each in definition.inputs.values())
    return not has_text or list(definition.inputs) == [names.SIGNATURE_INPUTS.get(name)]


def _read_signature(definition: Any) -> Signature:
    def read(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
        return {name: _read_spec(tensors[name]) for name in sorted(tensors)}

    return Signature(read(definition.inputs), read(definition.outputs))


def _read_spec(tensor: Any) -> TensorSpec:
    dtype = tf.as_dtype(tensor.dtype)
    shape = None
    if not tensor.tensor_shape.unknown_rank:
        shape = tuple(each.size if each.size >= 0 else None for each in tensor.tensor_shape.dim)
    if dtype == tf.string:
        return TensorSpec("text", object, shape)
    if dtype.is_bool:
        return TensorSpec("bool", np.bool_, shape)
    return TensorSpec("int" if dtype.is_integer else "float", dtype.as_numpy_dtype, shape)


def _find_label_map(model_dir: str) -> LabelMap | None:
    has_one = tf.io.gfile.exists(f"{model_dir}/assets/{names.ASSET_LABEL_MAP}")
    return read_exported_label_map(model_dir) if has_one else None


def _check_images(signature_name: str, inputs: Arrays) -> Arrays:
    """The inputs, with tf.Examples written anew from what was looked at in them.

    Parsers may disagree on which of several values a crafted example holds, and the model has one of its own.
    """
    if signature_name not in (names.SIGNATURE_ENCODED, names.SIGNATURE_EXAMPLES):
        return inputs
    input_name = names.SIGNATURE_INPUTS[signature_name]
    array = inputs[input_name]
    values = array.ravel().tolist()
    if signature_name == names.SIGNATURE_EXAMPLES:
        values = [_read_encoded(value, f"{input_name}[{position}]") for position, value in enumerate(values)]
    try:
        check_images(values, input_name)
    except InputError as error:
        raise RequestError(str(error)) from None
    if signature_name == names.SIGNATURE_EXAMPLES:
        values = [_write_encoded(value) for value in values]
    checked = np.empty(len(values), object)
    checked[:] = values
    return {**inputs, input_name: checked.reshape(array.shape)}


def _write_encoded(image_bytes: bytes) -> bytes:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes]))
    features = tf.train.Features(feature={example_keys.IMAGE_ENCODED: feature})
    return bytes(tf.train.Example(features=features).SerializeToString())


def _read_encoded(serialized: bytes, where: str) -> bytes:
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception:  # protobuf's DecodeError lives in another place in each of its implementations
        raise RequestError(f"{where}: is not a tf.Example.") from None
    values = example.features.feature[example_keys.IMAGE_ENCODED].bytes_list.value
    if len(values) != 1:
        raise RequestError(f"{where}: got {len(values)} values in {example_keys.IMAGE_ENCODED}, allowed: one.")
    return bytes(values[0])


def _to_array(tensor: tf.Tensor) -> np.ndarray:
    value = tensor.numpy()
    return np.array(value, dtype=object) if tensor.dtype == tf.string else np.asarray(value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
