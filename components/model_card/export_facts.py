"""What an exported model takes and returns, and what else lies beside it."""

import datetime
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from detloom.components.model_card.read_files import number, read_bytes, read_json, reading, text
from detloom.schemas import detections as names
from detloom.schemas.errors import InputError

_CONTRACT = "the contract of an exported model"


def describe_export(model_dir: str, tflite_dir: str | None, onnx_dir: str | None = None) -> dict[str, Any]:
    """Signatures, versions, TFLite variants and an ONNX file.

    Returns:
        `created` (UTC), versions, `box_units` and meanings are None where the export does not say them: models from
        before there was a contract do not.

    Raises:
        InputError: if there is no SavedModel, or its contract cannot be read.
    """
    graph = _read_graph(model_dir)
    path = f"{model_dir}/assets/{names.ASSET_CONTRACT}"
    contract = read_json(path, _CONTRACT) if tf.io.gfile.exists(path) else {"outputs": {}, "signatures": {}}
    versions = {"detloom": None, "tensorflow": graph.meta_info_def.tensorflow_version or None}
    with reading(path, _CONTRACT):
        versions |= {str(name): text(version) for name, version in contract.get("versions", {}).items()}
        created = _read_time(contract.get("created"))
        box_units = text(contract["box_units"]) if "box_units" in contract else None
        outputs = {name: text(facts["is"]) for name, facts in contract["outputs"].items()}
        inputs = {name: text(facts["input"]["is"]) for name, facts in contract["signatures"].items()}
    with reading(f"{model_dir}/{names.SAVED_MODEL_FILE}", "a SavedModel"):
        signatures = [
            {
                "name": name,
                "inputs": [{**tensor, "meaning": inputs.get(name)} for tensor in _tensors(signature.inputs)],
                "outputs": [{**each, "meaning": outputs.get(each["name"])} for each in _tensors(signature.outputs)],
            }
            for name, signature in sorted(graph.signature_def.items())
            if not name.startswith("__")
        ]
    return {
        "created": created,
        "versions": versions,
        "box_units": box_units,
        "signatures": signatures,
        "tflite": [
            {"name": path.rsplit("/", 1)[-1].removesuffix(names.TFLITE_SUFFIX), "bytes": tf.io.gfile.stat(path).length}
            for path in (sorted(tf.io.gfile.glob(f"{tflite_dir}/*{names.TFLITE_SUFFIX}")) if tflite_dir else ())
        ],
        "onnx_bytes": _bytes_of(f"{onnx_dir}/{names.ONNX_FILE}") if onnx_dir else None,
    }


def _bytes_of(path: str) -> int | None:
    return int(tf.io.gfile.stat(path).length) if tf.io.gfile.exists(path) else None


def _read_graph(model_dir: str) -> meta_graph_pb2.MetaGraphDef:
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString(read_bytes(path, "an exported model", max_bytes=2**31 - 1))
    except DecodeError:
        raise InputError(f"{path}: is not a SavedModel; export the model again.") from None
    for graph in saved_model.meta_graphs:
        if "serve" in graph.meta_info_def.tags:
            return graph
    raise InputError(f"{path}: the SavedModel has no graph to serve; export the model again.")


def _tensors(infos: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, type and shape of each; None in a shape is any size, and a whole shape of None is any shape."""
    return [
        {
            "name": name,
            "dtype": tf.dtypes.as_dtype(info.dtype).name,
            "shape": None
            if info.tensor_shape.unknown_rank
            else [None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim],
        }
        for name, info in sorted(infos.items())
    ]


def _read_time(value: Any) -> str | None:
    """A time as ISO 8601 or in seconds since 1970, as ISO 8601 in UTC to the second."""
    if value is None:
        return None
    if isinstance(value, str):  # Python 3.10 does not read the Z
        time = datetime.datetime.fromisoformat(value.removesuffix("Z") + ("+00:00" if value.endswith("Z") else ""))
        time = time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)
    else:
        time = datetime.datetime.fromtimestamp(number(value), datetime.timezone.utc)
    return time.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")
