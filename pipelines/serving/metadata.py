"""What TensorFlow Serving says of a model: its status, and its signatures. Protobuf's JSON form, all fields in it."""

from collections.abc import Mapping
from typing import Any

from tensorflow.core.framework import types_pb2

from detloom.pipelines.serving.served_model import ServedModel

_MAP_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


def format_status(model: ServedModel) -> dict[str, Any]:
    """A `GetModelStatusResponse`; a server answers only once its model is loaded."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(model.version), "state": "AVAILABLE", "status": status}]}


def format_metadata(model: ServedModel) -> dict[str, Any]:
    """A `GetModelMetadataResponse`."""
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
    dims = [{"size": str(each.size), "name": each.name} for each in tensor.tensor_shape.dim]  # int64: text in JSON
    return {
        "dtype": types_pb2.DataType.Name(tensor.dtype),
        "tensor_shape": {"dim": dims, "unknown_rank": tensor.tensor_shape.unknown_rank},
        "name": tensor.name,
    }
