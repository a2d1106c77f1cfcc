"""An ONNX file in the process of `model_process.py`, run by ONNX Runtime or OpenVINO."""

import io
from collections.abc import Mapping

import numpy as np

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array
from detloom.trainer_module.inference.check_onnx_file import check_onnx_file
from detloom.trainer_module.runtime.host_devices import usable_cpus


class OnnxRuntimeSession:
    """A model that ONNX Runtime has loaded.

    Attributes:
        description: the name, element type and number of dimensions of each input, and the names of the outputs.
    """

    def __init__(self, content: bytes) -> None:
        import onnxruntime

        check_onnx_file(content)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = usable_cpus()
        options.add_session_config_entry("session.load_model_format", "ONNX")  # its other format is not checked
        options.enable_mem_pattern = False  # a plan for each size of images would stay in memory
        # Threads that wait in a loop take the CPUs of those that decode images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs = [(each.name, each.type, len(each.shape)) for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]
        self.description = inputs, self._outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        outputs = self._session.run(self._outputs, dict(inputs))
        return dict(zip(self._outputs, map(np.asarray, outputs), strict=True))  # an output may also be a list or a map


class OpenVinoSession:
    """A model that OpenVINO has loaded; `description` as for ONNX Runtime."""

    def __init__(self, content: bytes) -> None:
        import openvino

        check_onnx_file(content)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": usable_cpus(),
            "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 on some CPUs
            "ENABLE_CPU_PINNING": False,  # threads that decode images use the same CPUs
        }
        model = openvino.Core().read_model(io.BytesIO(content))
        # For one image, sizes inside the model are known: loops need half of the time, and batches are not faster.
        model.reshape({each: [1, *list(each.partial_shape)[1:]] for each in model.inputs})
        self._request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
        types = [(each.get_any_name(), each.element_type, each.partial_shape.rank) for each in model.inputs]
        inputs = [(name, f"tensor({kind.to_dtype().name})", rank.get_length()) for name, kind, rank in types]
        self._outputs = [name for each in model.outputs for name in each.names]  # an output may have several names
        self.description = inputs, self._outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        num_images = len(next(iter(inputs.values())))
        parts = [self._run_one({name: value[i : i + 1] for name, value in inputs.items()}) for i in range(num_images)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run_one(self, inputs: dict[str, Array]) -> dict[str, Array]:
        results = self._request.infer(inputs)  # the next call overwrites them
        return {name: results[name].copy() for name in self._outputs if name in names.OUTPUTS}
