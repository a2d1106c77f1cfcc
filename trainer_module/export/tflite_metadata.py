"""Metadata of TensorFlow Lite files: the metadata format of TensorFlow Lite, and associated files.

The files are in a ZIP archive at the end of the model, where the tools of TensorFlow Lite look for them; the
interpreter ignores it. Source: metadata_schema.fbs of TensorFlow Lite Support (identifier M001, parser version 1.0.0),
whose writer is no longer released.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.tools import flatbuffer_utils

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, format_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.export.serving_contract import describe_network_input, describe_versions
from detloom.trainer_module.files.strict_json import to_strict_json

LABELS_FILE = "labelmap.txt"  # line n, counted from 0, is the class of id n
_METADATA_NAME, _IDENTIFIER, _PARSER_VERSION = "TFLITE_METADATA", b"M001", "1.0.0"
_TENSOR_VALUE_LABELS, _IMAGE_PROPERTIES, _RGB = 3, 2, 1  # of AssociatedFileType, ContentProperties, ColorSpaceType
_NO_CLASS = "???"  # for ids without a class, as in the examples of TensorFlow Lite
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # constant, so that the bytes are reproducible
_MAX_PACKED_BYTES = 16 * 1024 * 1024
_OUTPUTS = {  # in the order of TFLite_Detection_PostProcess, in which callers without signatures expect them
    names.BOXES: "ymin, xmin, ymax, xmax, 0 to 1, relative to the input including its padding.",
    names.CLASSES: f"Ids of the label map, which are line numbers of {LABELS_FILE}, counted from 0.",
    names.SCORES: "0 to 1, in descending order.",
    names.NUM_DETECTIONS: "Number of rows of the other outputs that are not padding; padding is undefined.",
    names.RAW_BOXES: "ymin, xmin, ymax, xmax of the box of every anchor, relative to the input, not suppressed.",
    names.RAW_SCORES: "0 to 1, for each box and class, in the order of the label map.",
}


def with_metadata(
    model_bytes: bytes, variant: str, detector: Detector, config: TrainEvalConfig, settings: Export
) -> bytes:
    """Return the model with metadata, labels, label map, configuration and contract."""
    network_input = describe_network_input(detector.preprocessing)
    model = flatbuffer_utils.convert_bytearray_to_object(bytearray(model_bytes))
    (signature,) = model.signatureDefs
    name_by_tensor = {output.tensorIndex: output.name.decode() for output in signature.outputs}
    tensors = sorted(model.subgraphs[0].outputs, key=lambda index: list(_OUTPUTS).index(name_by_tensor[index]))
    model.subgraphs[0].outputs = tensors
    outputs = [name_by_tensor[index] for index in tensors]
    buffer, entry = flatbuffer_utils.schema_fb.BufferT(), flatbuffer_utils.schema_fb.MetadataT()
    buffer.data = np.frombuffer(_format_metadata(variant, network_input, outputs), np.uint8)
    entry.name, entry.buffer = _METADATA_NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    packed = io.BytesIO(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))
    files = {
        LABELS_FILE: _format_labels(detector.label_map),
        names.ASSET_LABEL_MAP: format_label_map(detector.label_map),
        names.ASSET_CONFIG: to_canonical_json(config),
        names.ASSET_CONTRACT: to_strict_json(_format_contract(network_input, outputs, settings), indent=1) + "\n",
    }
    with zipfile.ZipFile(packed, "a") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), text)
    return packed.getvalue()


def read_packed_files(model_bytes: bytes) -> dict[str, str]:
    """Return the associated files of a model, by name; {} if there are none.

    Raises:
        InputError: if they are damaged or too large.
    """
    if not zipfile.is_zipfile(io.BytesIO(model_bytes)):
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(model_bytes)) as archive:
            infos = archive.infolist()
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise InputError("its packed files are compressed, allowed: uncompressed")
            if sum(info.file_size for info in infos) > _MAX_PACKED_BYTES:
                raise InputError(f"has packed files of more than {_MAX_PACKED_BYTES} bytes")
            return {info.filename: archive.read(info).decode("utf-8") for info in infos}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, OSError, EOFError) as error:
        raise InputError(f"its packed files cannot be read ({error})") from None


def _format_labels(label_map: LabelMap) -> str:
    by_id = {class_id: " ".join(name.splitlines()) for class_id, name in label_map.names_by_id}
    return "".join(f"{by_id.get(number, _NO_CLASS)}\n" for number in range(max(by_id) + 1))


def _format_contract(network_input: dict[str, Any], outputs: Sequence[str], settings: Export) -> dict[str, Any]:
    return {
        "signature": names.SIGNATURE_IMAGES,
        "input": {"name": names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES], **network_input},
        "outputs": {name: _OUTPUTS[name] for name in outputs},
        "max_detections": settings.tflite_max_detections,
        "versions": describe_versions(),
    }


def _format_metadata(variant: str, network_input: dict[str, Any], outputs: Sequence[str]) -> bytes:
    """Return the flatbuffer of `ModelMetadata`."""
    builder = flatbuffers.Builder(1024)
    labels = _table(builder, 5, {0: builder.CreateString(LABELS_FILE)}, numbers={2: (_TENSOR_VALUE_LABELS, "Int8")})
    inputs = _vector(builder, [_input_metadata(builder, network_input)])
    tensors = [_output_metadata(builder, name, labels if name == names.CLASSES else None) for name in outputs]
    subgraph = _table(builder, 10, {2: inputs, 3: _vector(builder, tensors)})
    texts = {0: f"detloom {variant}", 1: "Detects objects.", 7: _PARSER_VERSION}
    offsets = {slot: builder.CreateString(text) for slot, text in texts.items()}
    root = _table(builder, 8, {**offsets, 3: _vector(builder, [subgraph])})
    builder.Finish(root, _IDENTIFIER)
    return bytes(builder.Output())


def _input_metadata(builder: flatbuffers.Builder, network_input: dict[str, Any]) -> int:
    """Describe an RGB image; callers must not normalize it, because the model does."""
    size = _table(
        builder, 2, {}, numbers={0: (network_input["width"], "Uint32"), 1: (network_input["height"], "Uint32")}
    )
    image = _table(builder, 2, {1: size}, numbers={0: (_RGB, "Int8")})
    content = _table(builder, 3, {1: image}, numbers={0: (_IMAGE_PROPERTIES, "Uint8")})
    name = builder.CreateString("image")
    about = builder.CreateString("RGB, 0 to 255; resized and padded as described in contract.json.")
    return _table(builder, 7, {0: name, 1: about, 3: content})


def _output_metadata(builder: flatbuffers.Builder, name: str, labels: int | None) -> int:
    offsets = {0: builder.CreateString(name), 1: builder.CreateString(_OUTPUTS[name])}
    if labels is not None:
        offsets[6] = _vector(builder, [labels])
    return _table(builder, 7, offsets)


def _table(
    builder: flatbuffers.Builder,
    num_slots: int,
    offsets: Mapping[int, int],
    *,
    numbers: Mapping[int, tuple[int, str]] | None = None,
) -> int:
    """Build a table from offsets by slot, and numbers with their type."""
    builder.StartObject(num_slots)
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    for slot, (value, kind) in (numbers or {}).items():
        getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
