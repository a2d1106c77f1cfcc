"""An ONNX file with the inputs and outputs of an exported model, and hostile variants of it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BOX = (0.1, 0.2, 0.3, 0.4)


def make_tiny_onnx(box: tuple[float, ...] = BOX) -> onnx.ModelProto:
    """Return a model that finds one object of class 1 at `box` in each image; the score is its mean color over 255."""
    constants = {"scale": 1 / 255, "zero": 0.0, "one": 1.0, "box": box}
    initializers = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()]
    initializers += [numpy_helper.from_array(np.array([axis]), f"axis{axis}") for axis in (1, 2)]
    nodes = [
        helper.make_node("Cast", ["input_tensor"], ["colors"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["colors"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["score"]),
        helper.make_node("Mul", ["score", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "one"], ["num_detections"]),
        helper.make_node("Unsqueeze", ["score", "axis1"], ["detection_scores"]),
        helper.make_node("Unsqueeze", ["num_detections", "axis1"], ["detection_classes"]),
        helper.make_node("Unsqueeze", ["detection_classes", "axis2"], ["ones"]),
        helper.make_node("Mul", ["ones", "box"], ["boxes"]),
        helper.make_node("Identity", ["boxes"], ["detection_boxes"]),  # OpenVINO leaves it out
    ]
    shapes = {"boxes": ["B", 1, 4], "scores": ["B", 1], "classes": ["B", 1]}
    outputs = {**{f"detection_{name}": shape for name, shape in shapes.items()}, "num_detections": ["B"]}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input_tensor", TensorProto.UINT8, ["B", "H", "W", 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_tiny_onnx(folder: Path, graph_name: str = "tiny", box: tuple[float, ...] = BOX) -> Path:
    """Write `model.onnx` into the folder of a model and return its path."""
    path, model = folder / "model.onnx", make_tiny_onnx(box)
    model.graph.name = graph_name
    path.write_bytes(model.SerializeToString())
    return path
