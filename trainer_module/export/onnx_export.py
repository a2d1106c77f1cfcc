"""Export a trained detector as an ONNX file. Needs the packages of the extra `onnx`.

The model takes images of the network's size, float32 [B, H, W, 3] with colors of 0 to 255, and normalizes them. It
returns the raw boxes and scores; the caller runs non-maximum suppression. A family without raw outputs returns
detections.
"""

import logging
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.export.fixed_size_model import FixedSizeModel
from detloom.trainer_module.export.serving_contract import describe_network_input, describe_versions
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.runtime.numerics import without_tf32

_OPSET = 17  # of ONNX 1.12 (2022), which common runtimes support
_TOLERANCE = 1e-3  # relative and absolute; runtimes sum in another order
_LOGGER = logging.getLogger("detloom")


def check_onnx() -> None:
    """Check for the packages, before a training run that would end without the file.

    Raises:
        InputError: if packages are missing.
    """
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"export.onnx: needs tf2onnx and onnxruntime ({error}); run pip install '.[onnx]' in detloom's checkout."
        ) from None


def export_onnx(detector: Detector, folder: Path) -> Path:
    """Write `model.onnx`, label map and contract into `folder` atomically, and run the model once.

    The caller has checked the settings with `config.model.check_export`.

    Raises:
        InputError: see `check_onnx`.
        RuntimeError: if the results of the ONNX runtime differ from those of the model in memory.
    """
    check_onnx()
    import tf2onnx

    model = FixedSizeModel(detector, raw=True, max_detections=100, batch_size=None)
    (spec,) = model.serve.input_signature
    converted, _ = tf2onnx.convert.from_function(model.serve, input_signature=[spec], opset=_OPSET)
    serialized = converted.SerializeToString()
    outputs = _check(serialized, model)
    contract = {
        "input": {"name": spec.name, **describe_network_input(detector.preprocessing)},
        "outputs": outputs,
        "versions": describe_versions(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replace_when_done(folder) as partial:
        partial.mkdir()
        (partial / names.ONNX_FILE).write_bytes(serialized)
        write_label_map(partial / names.ASSET_LABEL_MAP, detector.label_map)
        write_text_file(partial / names.ASSET_CONTRACT, to_strict_json(contract, indent=1) + "\n")
    _LOGGER.info(
        "ONNX: %.2f MB; the results of the ONNX runtime equal those of the model in memory.", len(serialized) / 1e6
    )
    return folder / names.ONNX_FILE


def _check(serialized: bytes, model: FixedSizeModel) -> list[str]:
    """Run the model on two random images and compare; return the names of its outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    (spec,) = model.serve.input_signature
    images = np.random.default_rng(0).uniform(0, 255, [2, *spec.shape[1:]]).astype(np.float32)
    outputs = [output.name for output in session.get_outputs()]
    computed = dict(zip(outputs, session.run(outputs, {spec.name: images}), strict=True))
    with without_tf32():
        expected = {name: value.numpy() for name, value in model.serve(tf.constant(images)).items()}
    for name, value in expected.items():
        if name in (names.BOXES, names.CLASSES):
            continue  # without raw outputs: the order of equal scores is not defined
        if not np.isfinite(value).all():
            _LOGGER.warning("ONNX: %s is not finite, because the training diverged, and is not compared.", name)
            continue
        if not np.allclose(computed[name], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            worst = np.abs(computed[name] - value).max()
            raise RuntimeError(f"ONNX: {name} differs from the model in memory by {worst:g}, allowed: {_TOLERANCE:g}.")
    return outputs
