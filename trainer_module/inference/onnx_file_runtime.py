"""Run the ONNX file of a version with ONNX Runtime or OpenVINO, in a process of its own. Imports no TensorFlow."""

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array, Uint8Array
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.model_files import read_file
from detloom.trainer_module.inference.model_process import ModelInProcess
from detloom.trainer_module.inference.runtime import ContractRuntime, FailedCallError, check_outputs

_MAX_FILE_BYTES = 1 << 30
_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]


class RawOutputsError(InputError):
    """The file leaves suppression to its caller (`export.onnx_outputs: raw`)."""


class OnnxFileRuntime(ContractRuntime):
    """`model.onnx` in its full form: uint8 [B, H, W, 3] of any size in, the outputs of the contract out."""

    def __init__(self, model_dir: str, engine: Literal["onnxruntime", "openvino"]) -> None:
        """Load the file.

        Raises:
            InputError: with the file, if it is not such a model, or ends or blocks its process.
        """
        super().__init__(model_dir)
        self._path = f"{model_dir}/{names.ONNX_FILE}"
        try:
            self._model = ModelInProcess(engine, read_file(self._path, _MAX_FILE_BYTES))
        except FileNotFoundError:
            why = f"which {engine} needs; export it with export.onnx, or choose tensorflow"
            raise InputError(f"{model_dir}: has no {names.ONNX_FILE}, {why}.") from None
        except (OSError, RuntimeError) as error:
            raise InputError(f"{self._path}: cannot be loaded by {engine} ({_reason(error)}).") from None
        inputs, outputs = self._model.description
        if set(names.RAW_OUTPUT_NAMES) <= set(outputs):
            raise RawOutputsError(f"{self._path}: has raw outputs; export it with export.onnx_outputs: detections.")
        if inputs != [(_INPUT, "tensor(uint8)", 4)] or not set(names.OUTPUT_NAMES) <= set(outputs):
            raise InputError(
                f"{self._path}: got the inputs {inputs} and the outputs {outputs}, needed: {_INPUT} uint8 [B, H, W, 3] "
                f"and {list(names.OUTPUT_NAMES)}; export the model again."
            )

    def call(self, images: Sequence[EncodedImage]) -> dict[str, Array]:
        """See `ContractRuntime`; images of one size are one batch of the model."""
        places_by_hw: dict[tuple[int, ...], list[int]] = {}
        for place, image in enumerate(images):
            places_by_hw.setdefault(image.rgb.shape, []).append(place)
        sizes: dict[str | int, int] = {}  # equal for all batches, so that their outputs can be joined
        parts = [self._run(np.stack([images[i].rgb for i in places]), sizes) for places in places_by_hw.values()]
        order = np.argsort(list(itertools.chain(*places_by_hw.values())))
        return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}

    def _run(self, pixels_BHW3: Uint8Array, sizes: dict[str | int, int]) -> dict[str, Array]:
        try:
            found = self._model.run({_INPUT: pixels_BHW3})
        except RuntimeError as error:
            raise FailedCallError(_reason(error), is_refusal=False) from None
        outputs = {name: found[name] for name in names.OUTPUTS if name in found}
        check_outputs(outputs, names.OUTPUTS, {**sizes, "B": len(pixels_BHW3)})
        sizes["M"] = outputs[names.SCORES].shape[1]
        return outputs


def _reason(error: Exception) -> str:
    """Return an error message on one line, shortened; OpenVINO begins with lines that name places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = " ".join(line for line in lines if line and not line.endswith(":"))
    return (told or type(error).__name__)[:300].rstrip(".")
