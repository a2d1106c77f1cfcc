"""What a TensorFlow Lite file says about itself: TensorFlow Lite's own metadata, and files packed behind it.

The files lie in a ZIP archive at the end of the model, where TensorFlow Lite's tools look for them; the interpreter
does not read so far. Source: metadata_schema.fbs of TensorFlow Lite Support (identifier M001, parser version 1.0.0),
whose own writer is no longer released.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.tools import flatbuffer_utils

from detloom.schemas import detections as names
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.export_config import Export
from detloom.schemas.label_map import LabelMap, format_label_map
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.serving_contract import describe_network_input, describe_versions
from detloom.trainer_module.strict_json import to_strict_json

LABELS_FILE = "labelmap.txt"  # the class of id n stands in line n, counted from 0
_METADATA_NAME, _IDENTIFIER, _PARSER_VERSION = "TFLITE_METADATA", b"M001", "1.0.0"
_TENSOR_VALUE_LABELS, _IMAGE_PROPERTIES, _RGB = 3, 2, 1  # of AssociatedFileType, ContentProperties, ColorSpaceType
_NO_CLASS = "???"  # what TensorFlow Lite's examples write for ids without a class
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is written
_MAX_PACKED_BYTES = 16 * 1024 * 1024
_OUTPUTS = {
    names.BOXES: "ymin, xmin, ymax, xmax, 0 to 1, of the input, its padding included.",
    names.CLASSES: f"Ids of the label map, which are line numbers of {LABELS_FILE}, from 0.",
    names.SCORES: "0 to 1, the highest first.",
    names.NUM_DETECTIONS: "Rows of the others that are not padding; what stands in padding means nothing.",
    names.RAW_BOXES: "ymin, xmin, ymax, xmax of every anchor's box, relative to the input, doubles included.",
    names.RAW_SCORES: "0 to 1, of each box and class, in the order of the label map.",
}


def with_metadata(
    model_bytes: bytes, variant: str, label_map: LabelMap, config: TrainEvalConfig, settings: Export
) -> bytes:
    """The same model with metadata, labels, label map, configuration and contract."""
    model = flatbuffer_utils.convert_bytearray_to_object(bytearray(model_bytes))
    (signature,) = model.signatureDefs
    name_by_tensor = {each.tensorIndex: each.name.decode() for each in signature.outputs}
    outputs = [name_by_tensor[index] for index in model.subgraphs[0].outputs]
    buffer, entry = flatbuffer_utils.schema_fb.BufferT(), flatbuffer_utils.schema_fb.MetadataT()
    buffer.data = np.frombuffer(_format_metadata(variant, config.model, outputs), np.uint8)
    entry.name, entry.buffer = _METADATA_NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    packed = io.BytesIO(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))
    files = {
        LABELS_FILE: _format_labels(label_map),
        names.ASSET_LABEL_MAP: format_label_map(label_map),
        names.ASSET_CONFIG: to_canonical_json(config),
        names.ASSET_CONTRACT: to_strict_json(_format_contract(config.model, outputs, settings), indent=1) + "\n",
    }
    with zipfile.ZipFile(packed, "a") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), text)
    return packed.getvalue()


def read_packed_files(model_bytes: bytes) -> dict[str, str]:
    """The files behind a model, by name; empty where there are none.

    Raises:
        InputError: they are damaged, or larger than any of ours.
    """
    if not zipfile.is_zipfile(io.BytesIO(model_bytes)):
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(model_bytes)) as archive:
            infos = archive.infolist()
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise InputError("its packed files are compressed, allowed: stored")
            if sum(info.file_size for info in infos) > _MAX_PACKED_BYTES:
                raise InputError(f"has packed files of more than {_MAX_PACKED_BYTES} bytes")
            return {info.filename: archive.read(info).decode("utf-8") for info in infos}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, OSError, EOFError) as error:
        raise InputError(f"its packed files cannot be read ({error})") from None


def _format_labels(label_map: LabelMap) -> str:
    by_id = dict(label_map.names_by_id)
    return "".join(f"{by_id.get(number, _NO_CLASS)}\n" for number in range(max(by_id) + 1))


def _format_contract(model: Model, outputs: Sequence[str], settings: Export) -> dict[str, Any]:
    return {
        "signature": names.SIGNATURE_IMAGES,
        "input": {"name": names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES], **describe_network_input(model)},
        "outputs": {name: _OUTPUTS[name] for name in outputs},
        "max_detections": settings.tflite_max_detections,
        "versions": describe_versions(),
    }


def _format_metadata(variant: str, model: Model, outputs: Sequence[str]) -> bytes:
    """The flatbuffer of `ModelMetadata`."""
    builder = flatbuffers.Builder(1024)
    labels = _table(builder, 5, {0: builder.CreateString(LABELS_FILE)}, numbers={2: (_TENSOR_VALUE_LABELS, "Int8")})
    inputs = _vector(builder, [_input_metadata(builder, model)])
    tensors = [_output_metadata(builder, name, labels if name == names.CLASSES else None) for name in outputs]
    subgraph = _table(builder, 10, {2: inputs, 3: _vector(builder, tensors)})
    texts = {0: f"detloom {variant}", 1: "Finds objects and their boxes.", 7: _PARSER_VERSION}
    offsets = {slot: builder.CreateString(text) for slot, text in texts.items()}
    root = _table(builder, 8, {**offsets, 3: _vector(builder, [subgraph])})
    builder.Finish(root, _IDENTIFIER)
    return bytes(builder.Output())


def _input_metadata(builder: flatbuffers.Builder, model: Model) -> int:
    """An RGB picture that is not to be normalized: the model does it."""
    facts = describe_network_input(model)
    size = _table(builder, 2, {}, numbers={0: (facts["width"], "Uint32"), 1: (facts["height"], "Uint32")})
    image = _table(builder, 2, {1: size}, numbers={0: (_RGB, "Int8")})
    content = _table(builder, 3, {1: image}, numbers={0: (_IMAGE_PROPERTIES, "Uint8")})
    name = builder.CreateString("image")
    about = builder.CreateString("RGB, 0 to 255; fitted into this size as contract.json says.")
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
    """A table with what lies elsewhere, by slot, and numbers of a type."""
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
