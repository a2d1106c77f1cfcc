"""Convert a TensorFlow function to an ONNX model, for the operations of `onnx_operations.py`.

Source of the operations: https://onnx.ai/onnx/operators (operator set 17).
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from detloom.schemas.contracts.arrays import Array
from detloom.schemas.errors import InputError

OPSET = 17  # of ONNX 1.12 (2022), which common runtimes support
_IR_VERSION = 8  # of the same release
TO_CHANNELS_FIRST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)

Handler = Callable[["OnnxGraph", tf.Operation], None]


class Names:
    """Names, constants and functions of a whole model, which loops and branches share with the graph around them."""

    def __init__(self, root: tf.Graph) -> None:
        self.root = root
        self.functions = {each.signature.name: each for each in root.as_graph_def().library.function}
        for function in self.functions.values():
            for argument in function.arg_attr.values():
                argument.attr.pop("_output_shapes", None)  # unknown ones, which replace those that are given
        self._numbers = itertools.count()
        self._constants: dict[bytes, str] = {}
        self.arrays: dict[str, Array] = {}

    def new(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"

    def constant(self, value: Any) -> str:
        """Return the name of an array; equal arrays have one name."""
        array = np.asarray(value)
        key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()
        name = self._constants.setdefault(key, self.new("constant"))
        self.arrays[name] = array
        return name


class OnnxGraph:
    """The nodes of a graph: the model's own, the body of a loop or a branch.

    TensorFlow's images have the channels last, the convolutions of ONNX have them first. A tensor of four dimensions
    exists in the layout in which it was computed, and is transposed at most once.
    """

    def __init__(self, names: Names, handlers: dict[str, Handler]) -> None:
        self.names, self._handlers = names, handlers
        self._nodes: list[onnx.NodeProto] = []
        self._channels_last: dict[Any, str] = {}
        self._channels_first: dict[Any, str] = {}

    # --- for the operations -------------------------------------------------------------------------------------------

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return its name."""
        return self.add_many(kind, inputs, 1, **attributes)[0]

    def add_many(self, kind: str, inputs: Sequence[str], num_outputs: int, **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        outputs = [self.names.new(kind) for _ in range(num_outputs)]
        self._nodes.append(onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return outputs

    def rename(self, name: str, new_name: str) -> None:
        self._nodes.append(onnx.helper.make_node("Identity", [name], [new_name]))

    def constant(self, value: Any, dtype: Any = None) -> str:
        return self.names.constant(np.asarray(value, dtype))

    def ints(self, *values: int) -> str:
        """Return a constant int64 [n]."""
        return self.constant(values, np.int64)

    def cast(self, name: str, dtype: tf.DType | type) -> str:
        numpy_type = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
        return self.add("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(numpy_type))

    def get(self, tensor: tf.Tensor) -> str:
        """Return the name of a tensor as TensorFlow has it."""
        if tensor.ref() not in self._channels_last:
            first = self._channels_first[tensor.ref()]
            self._channels_last[tensor.ref()] = self.add("Transpose", first, perm=TO_CHANNELS_LAST)
        return self._channels_last[tensor.ref()]

    def value(self, tensor: tf.Tensor) -> Array | None:
        """Return the value of a tensor that does not depend on the input, otherwise None."""
        if self._channels_last.get(tensor.ref()) in self.names.arrays:
            return self.names.arrays[self._channels_last[tensor.ref()]]
        return tf.get_static_value(tensor)

    def get_int64(self, tensor: tf.Tensor) -> str:
        """Return the name of a tensor of whole numbers as int64, which indices and shapes of ONNX need."""
        value = self.value(tensor)
        if value is not None:
            return self.constant(value, np.int64)
        return self.get(tensor) if tensor.dtype == tf.int64 else self.cast(self.get(tensor), tf.int64)

    def get_channels_first(self, tensor: tf.Tensor) -> str:
        """Return the name of a tensor of four dimensions with its channels first."""
        if tensor.ref() not in self._channels_first:
            value = self.value(tensor)
            self._channels_first[tensor.ref()] = (
                self.add("Transpose", self.get(tensor), perm=TO_CHANNELS_FIRST)
                if value is None
                else self.constant(value.transpose(TO_CHANNELS_FIRST))
            )
        return self._channels_first[tensor.ref()]

    def has_channels_first(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor was computed with its channels first."""
        return tensor.ref() in self._channels_first and tensor.ref() not in self._channels_last

    def set(self, tensor: tf.Tensor, name: str) -> None:
        self._channels_last[tensor.ref()] = name

    def set_channels_first(self, tensor: tf.Tensor, name: str) -> None:
        self._channels_first[tensor.ref()] = name

    def call(self, graph: tf.Graph, inputs: Iterable[str]) -> list[str]:
        """Add the nodes of a function; return the names of its outputs."""
        for tensor, name in zip(graph.inputs, inputs, strict=True):
            self.set(tensor, name)
        return self.add_operations(graph)

    def add_operations(self, graph: tf.Graph) -> list[str]:
        """Add the nodes of a graph whose inputs are known; return the names of its outputs."""
        for operation in graph.get_operations():
            self._convert(operation)
        return [self.get(tensor) for tensor in graph.outputs]

    def function(self, operation: tf.Operation, attribute: str, shapes: Sequence[tf.TensorShape]) -> tf.Graph:
        """Return the graph of a function that an operation calls."""
        with self.names.root.as_default():
            definition = self.names.functions[operation.get_attr(attribute).name]
            return function_def_to_graph(definition, input_shapes=shapes)

    def as_outputs(self, names: Sequence[str]) -> list[str]:
        """Return other names where a graph may not return these: its inputs, names from outside, and names twice."""
        made = {output for node in self._nodes for output in node.output}
        return [
            name if name in made and name not in names[:place] else self.add("Identity", name)
            for place, name in enumerate(names)
        ]

    def inner(self) -> "OnnxGraph":
        """Return an empty graph inside this one."""
        return OnnxGraph(self.names, self._handlers)

    # --- conversion ---------------------------------------------------------------------------------------------------

    def _convert(self, operation: tf.Operation) -> None:
        if operation.type in ("Placeholder", "NoOp"):
            return
        values = self._known_outputs(operation)
        if values is not None:
            for tensor, value in zip(operation.outputs, values, strict=True):
                self.set(tensor, self.constant(value, tensor.dtype.as_numpy_dtype))
        elif operation.type in self._handlers:
            self._handlers[operation.type](self, operation)
        else:
            raise InputError(
                f"export.onnx: TensorFlow's operation {operation.type} ({operation.name}) cannot be converted to ONNX; "
                "set export.onnx to false, or add it to trainer_module/export/onnx_operations.py."
            )

    def _known_outputs(self, operation: tf.Operation) -> list[Array] | None:
        """Return the outputs of an operation that do not depend on the input of the model, otherwise None."""
        outputs = [tf.get_static_value(tensor) for tensor in operation.outputs]
        if all(output is not None for output in outputs):
            return outputs
        inputs = [self.value(tensor) for tensor in operation.inputs]
        has_functions = any(attribute.type == "func" for attribute in operation.op_def.attr)
        if has_functions or operation.op_def.is_stateful or any(value is None for value in inputs):
            return None
        return _evaluate(operation, inputs)

    def to_proto(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        constants: Sequence[str] = (),
    ) -> onnx.GraphProto:
        """Return the graph without the nodes that no output needs."""
        needed, kept = {output.name for output in outputs}, []
        for node in reversed(self._nodes):
            if needed & set(node.output):
                kept.append(node)
                needed |= names_used(node)
        initializers = [
            onnx.numpy_helper.from_array(self.names.arrays[name], name) for name in constants if name in needed
        ]
        return onnx.helper.make_graph(kept[::-1], "detector", inputs, outputs, initializers)


def names_used(node: onnx.NodeProto) -> set[str]:
    """Return the names of all tensors that a node reads, also inside of its graphs."""
    inner = [each for attribute in node.attribute if attribute.HasField("g") for each in attribute.g.node]
    of_graphs = {output.name for attribute in node.attribute for output in attribute.g.output}
    return set(node.input).union(of_graphs, *map(names_used, inner))


def _evaluate(operation: tf.Operation, inputs: Sequence[Array | None]) -> list[Array]:
    """Execute an operation."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        constants = [tf.constant(value, each.dtype) for value, each in zip(inputs, operation.inputs, strict=True)]
        types = [tensor.dtype for tensor in operation.outputs]
        attributes = dict(operation.node_def.attr)
        copy = graph.create_op(operation.type, constants, types, attrs=attributes, op_def=operation.op_def)
        found: list[Array] = session.run(list(copy.outputs))
        return found


def value_info(name: str, tensor: tf.Tensor) -> onnx.ValueInfoProto:
    """Describe a tensor by type and shape; an unknown size has no value."""
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype.as_numpy_dtype))
    shape = None if tensor.shape.rank is None else tensor.shape.as_list()
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


def convert_to_onnx(
    function: tf.types.experimental.ConcreteFunction, input_name: str, handlers: dict[str, Handler]
) -> onnx.ModelProto:
    """Convert a function of images [B, H, W, C] that returns a dictionary; its variables become constants.

    Raises:
        InputError: for an operation that has no handler.
    """
    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    names = Names(frozen.graph)
    graph = OnnxGraph(names, handlers)
    outputs = dict(zip(sorted(function.structured_outputs), frozen.outputs, strict=True))
    (images,) = frozen.graph.inputs
    graph.set_channels_first(images, graph.add("Transpose", input_name, perm=TO_CHANNELS_FIRST))  # while they are bytes
    found = graph.add_operations(frozen.graph)
    infos = []
    for name, internal, tensor in zip(outputs, found, frozen.outputs, strict=True):
        graph.rename(internal, name)
        infos.append(value_info(name, tensor))
    proto = graph.to_proto([value_info(input_name, images)], infos, tuple(names.arrays))
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(proto, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="detloom")
