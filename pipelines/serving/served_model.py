"""A loaded SavedModel that answers one request at a time and checks images first; status and metadata for the API."""

import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from detloom.components.example_gen.decoded_image import check_decodes
from detloom.components.example_gen.image_header import ImageError
from detloom.pipelines.serving.image_limits import check_images
from detloom.pipelines.serving.predict_request import (
    Arrays,
    RequestError,
    Signature,
    TensorSpec,
    format_predict_response,
    parse_predict_request,
)
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.export.predict import (
    find_saved_model,
    has_pixel_boxes,
    load_saved_model,
    read_exported_label_map,
    read_signatures,
    reason_of_failed_call,
)

_MAX_WAIT_SECONDS = 60.0  # for earlier requests; most clients give up by then
_SIGNATURES_OF_FILES = (names.SIGNATURE_ENCODED, names.SIGNATURE_EXAMPLES)
_MAP_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class ServedModel:
    """One version of a model.

    Attributes:
        version: the number of its folder; 1 if the folder name is not a number.
        label_map: None if the SavedModel has none in its assets.
        signatures: the served signatures by name.
        definitions: the SignatureDef of each, for the metadata.
        has_pixel_boxes: True if its boxes are in pixels, False if they are relative to the image size.
    """

    def __init__(self, model_dir: Path, name: str) -> None:
        """Load the SavedModel.

        Raises:
            InputError: it cannot be loaded, or none of its signatures can be served.
        """
        self.name, self.version = name, int(model_dir.name) if model_dir.name.isdecimal() else 1
        found = read_signatures(str(model_dir))
        self.definitions = {key: definition for key, definition in found.items() if _is_servable(key, definition)}
        if not self.definitions:
            raise InputError(f"{model_dir}: none of its signatures {sorted(found)} accepts images.")
        self.signatures = {key: _read_signature(definition) for key, definition in self.definitions.items()}
        self.label_map = _find_label_map(str(model_dir))
        self.has_pixel_boxes = has_pixel_boxes(str(model_dir))
        self._model = load_saved_model(str(model_dir))  # kept, because its variables are freed with it
        self._lock = threading.Lock()

    def predict(self, body: bytes) -> tuple[dict[str, Any], float]:
        """Return the response to a `:predict` request as plain values for JSON, and the seconds that the model took.

        Requests are parsed one at a time as well, because parsed JSON takes up to fifty times its size (nested lists).

        Raises:
            RequestError: with a sentence for the client.
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
            return format_predict_response(outputs, is_row=request.is_row), seconds
        finally:
            self._lock.release()

    def wait_until_idle(self, timeout_seconds: float) -> None:
        """Wait for the current call and allow no other. A process that exits during a call may crash."""
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
            _check_decodes(signature_name, inputs)
            raise RequestError(f"the model rejected the input ({reason_of_failed_call(error)}).") from None
        except tf.errors.OpError as error:
            message = f"the model failed ({reason_of_failed_call(error)})."
            raise RequestError(message, HTTPStatus.INTERNAL_SERVER_ERROR) from None
        return {name: _to_array(outputs[name]) for name in self.signatures[signature_name].outputs}


def load_served_model(model: Path, name: str) -> ServedModel:
    """Load the model that `find_saved_model` finds.

    Raises:
        InputError: with the folder and the problem.
    """
    return ServedModel(find_saved_model(model).resolve(), name)


def _is_servable(name: str, definition: Any) -> bool:
    """Return True if its inputs can be checked: numbers, or bytes that are known to be images or tf.Examples."""
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
    """Check the images in the inputs, and rebuild each tf.Example from the checked image.

    Different parsers may read different values from a crafted tf.Example, and the model has a parser of its own.
    """
    if signature_name not in _SIGNATURES_OF_FILES:
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


def _check_decodes(signature_name: str, inputs: Arrays) -> None:
    """Raise RequestError for the first image that does not decode, because the model's message does not name it."""
    if signature_name not in _SIGNATURES_OF_FILES:
        return
    input_name = names.SIGNATURE_INPUTS[signature_name]
    for position, value in enumerate(inputs[input_name].ravel().tolist()):
        where = f"{input_name}[{position}]"
        try:
            check_decodes(_read_encoded(value, where) if signature_name == names.SIGNATURE_EXAMPLES else value)
        except ImageError as error:
            raise RequestError(f"{where}: {error.detail}.") from None


def _write_encoded(image_bytes: bytes) -> bytes:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes]))
    features = tf.train.Features(feature={example_keys.IMAGE_ENCODED: feature})
    return bytes(tf.train.Example(features=features).SerializeToString())


def _read_encoded(serialized: bytes, where: str) -> bytes:
    try:
        values = ExampleFeatures(serialized).texts(example_keys.IMAGE_ENCODED)
    except ValueError as error:
        raise RequestError(f"{where}: {error}.") from None
    if len(values) != 1:
        raise RequestError(f"{where}: got {len(values)} values in {example_keys.IMAGE_ENCODED}, allowed: one.")
    return values[0]


def _to_array(tensor: tf.Tensor) -> np.ndarray:
    value = tensor.numpy()
    return np.array(value, dtype=object) if tensor.dtype == tf.string else np.asarray(value)


def format_status(model: ServedModel) -> dict[str, Any]:
    """Return a `GetModelStatusResponse`. The server starts only after the model is loaded."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(model.version), "state": "AVAILABLE", "status": status}]}


def format_metadata(model: ServedModel) -> dict[str, Any]:
    """Return a `GetModelMetadataResponse`."""
    signatures = {name: _format_signature(each) for name, each in sorted(model.definitions.items())}
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": str(model.version)},
        "metadata": {"signature_def": {"@type": _MAP_TYPE, "signature_def": signatures}},
    }


def _format_signature(definition: Any) -> dict[str, Any]:
    return {
        "inputs": _format_tensors(definition.inputs),
        "outputs": _format_tensors(definition.outputs),
        "method_name": definition.method_name,
    }


def _format_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _format_tensor(tensors[name]) for name in sorted(tensors)}


def _format_tensor(tensor: Any) -> dict[str, Any]:
    dims = [{"size": str(each.size), "name": each.name} for each in tensor.tensor_shape.dim]  # int64 is text in JSON
    return {
        "dtype": types_pb2.DataType.Name(tensor.dtype),
        "tensor_shape": {"dim": dims, "unknown_rank": tensor.tensor_shape.unknown_rank},
        "name": tensor.name,
    }
