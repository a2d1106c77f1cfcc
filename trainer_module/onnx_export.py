"""A trained detector as an ONNX file. Needs the packages of `pip install detloom[onnx]`.

The file takes pictures of the network's size, float32 [B, H, W, 3] with colours from 0 to 255, normalizes them, and
answers with all boxes and scores; doubles are the caller's to suppress. CenterNet has none and answers with detections.
"""

import logging
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import write_label_map
from detloom.schemas.text_file import write_text_file
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.fixed_size_model import FixedSizeModel
from detloom.trainer_module.move_folder import move_folder
from detloom.trainer_module.serving_contract import describe_network_input, describe_versions
from detloom.trainer_module.strict_json import to_strict_json

_OPSET = 17  # of ONNX 1.12, 2022: what runtimes in the field understand
_TOLERANCE = 1e-3  # relative and absolute; runtimes add up in another order
_LOGGER = logging.getLogger("detloom")


def check_onnx() -> None:
    """Before a training that would end without the file.

    Raises:
        InputError: the packages are missing.
    """
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"export.onnx: needs tf2onnx and onnxruntime ({error}); pip install 'detloom[onnx]'."
        ) from None


def export_onnx(detector: Detector, config: TrainEvalConfig, folder: Path) -> Path:
    """Write `model.onnx`, label map and contract into `folder`, which is there whole or not at all; run it once.

    What `check_export` refuses is to be refused before.

    Raises:
        InputError: see `check_onnx`.
        RuntimeError: ONNX's runtime answers otherwise than the model in memory.
    """
    check_onnx()
    import tf2onnx

    model = FixedSizeModel(detector, raw=True, max_detections=100, batch_size=None)
    (spec,) = model.serve.input_signature
    converted, _ = tf2onnx.convert.from_function(model.serve, input_signature=[spec], opset=_OPSET)
    serialized = converted.SerializeToString()
    outputs = _check(serialized, model)
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / names.ONNX_FILE).write_bytes(serialized)
    write_label_map(partial / names.ASSET_LABEL_MAP, detector.label_map)
    contract = {
        "input": {"name": spec.name, **describe_network_input(config.model)},
        "outputs": outputs,
        "versions": describe_versions(),
    }
    write_text_file(partial / names.ASSET_CONTRACT, to_strict_json(contract, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    move_folder(partial, folder)
    _LOGGER.info("ONNX: %.2f MB; ONNX's runtime gives what the model in memory gives.", len(serialized) / 1e6)
    return folder / names.ONNX_FILE


def _check(serialized: bytes, model: FixedSizeModel) -> list[str]:
    """Run it on two made pictures; the names of its outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    (spec,) = model.serve.input_signature
    pictures = np.random.default_rng(0).uniform(0, 255, [2, *spec.shape[1:]]).astype(np.float32)
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(outputs, {spec.name: pictures}), strict=True))
    expected = {name: value.numpy() for name, value in model.serve(tf.constant(pictures)).items()}
    for name, value in expected.items():
        if name in (names.BOXES, names.CLASSES):
            continue  # of CenterNet: where two scores are equal, either may come first
        if not np.allclose(found[name], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            worst = np.abs(found[name] - value).max()
            raise RuntimeError(f"ONNX: {name} differs from the model in memory by {worst:g}, allowed: {_TOLERANCE:g}.")
    return outputs
