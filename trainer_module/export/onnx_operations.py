"""Conversion of each operation of TensorFlow that detectors use to nodes of ONNX."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.trainer_module.export.onnx_graph import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Handler, OnnxGraph, value_info

HANDLERS: dict[str, Handler] = {}
_AXIS = {0: 0, 1: 2, 2: 3, 3: 1}  # of a tensor with its channels last: the same axis with its channels first


def _handles(*types: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(types, handler))
        return handler

    return register


def _value(graph: OnnxGraph, tensor: tf.Tensor) -> Any:
    """Return the value of an input that must not depend on the image."""
    value = graph.value(tensor)
    if value is None:
        raise InputError(f"export.onnx: {tensor.op.name} must be constant, to be converted to ONNX.")
    return value


def _require(operation: tf.Operation, is_possible: bool, attribute: str) -> None:
    if not is_possible:
        raise InputError(f"export.onnx: {operation.type} ({operation.name}) cannot be converted with this {attribute}.")


def _number(graph: OnnxGraph, tensor: tf.Tensor) -> int:
    """Return the value of an input that is one whole number."""
    return int(_value(graph, tensor).item())


# --- element by element -----------------------------------------------------------------------------------------------

_ELEMENTWISE = {
    "Add": "Add",
    "AddN": "Sum",
    "AddV2": "Add",
    "BiasAdd": "Add",
    "Ceil": "Ceil",
    "Equal": "Equal",
    "Exp": "Exp",
    "Floor": "Floor",
    "FloorMod": "Mod",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
    "Log": "Log",
    "Maximum": "Max",
    "Minimum": "Min",
    "Mul": "Mul",
    "Neg": "Neg",
    "RealDiv": "Div",
    "Relu": "Relu",
    "Round": "Round",
    "Select": "Where",
    "SelectV2": "Where",
    "Sigmoid": "Sigmoid",
    "Sqrt": "Sqrt",
    "Sub": "Sub",
}


def _elementwise(
    graph: OnnxGraph, operation: tf.Operation, compute: Callable[..., str], inputs: Sequence[tf.Tensor] | None = None
) -> None:
    """Compute in the layout of the inputs: `compute` gets their names and returns that of the output."""
    tensors = list(operation.inputs) if inputs is None else inputs
    (output,) = operation.outputs
    ranks = [tensor.shape.rank for tensor in tensors]
    if any(map(graph.has_channels_first, tensors)) and not set(ranks) - {0, 1, 4}:
        names = [_broadcast_to_channels_first(graph, tensor) for tensor in tensors]
        graph.set_channels_first(output, compute(*names))
    else:
        graph.set(output, compute(*map(graph.get, tensors)))


def _broadcast_to_channels_first(graph: OnnxGraph, tensor: tf.Tensor) -> str:
    if tensor.shape.rank == 4:
        return graph.get_channels_first(tensor)
    if tensor.shape.rank == 0:
        return graph.get(tensor)
    value = graph.value(tensor)
    if value is None:
        return graph.add("Unsqueeze", graph.get(tensor), graph.ints(1, 2))
    return graph.constant(value[:, np.newaxis, np.newaxis])


@_handles(*_ELEMENTWISE)
def _plain(graph: OnnxGraph, operation: tf.Operation) -> None:
    _elementwise(graph, operation, functools.partial(graph.add, _ELEMENTWISE[operation.type]))


@_handles("EnsureShape", "Identity", "IdentityN", "StopGradient")
def _copy(graph: OnnxGraph, operation: tf.Operation) -> None:
    for source, output in zip(operation.inputs, operation.outputs, strict=True):
        if graph.has_channels_first(source):
            graph.set_channels_first(output, graph.get_channels_first(source))
        else:
            graph.set(output, graph.get(source))


@_handles("Relu6")
def _relu6(graph: OnnxGraph, operation: tf.Operation) -> None:
    low, high = (graph.constant(bound, np.float32) for bound in (0, 6))
    _elementwise(graph, operation, lambda name: graph.add("Clip", name, low, high))


@_handles("Square")
def _square(graph: OnnxGraph, operation: tf.Operation) -> None:
    _elementwise(graph, operation, lambda name: graph.add("Mul", name, name))


@_handles("Rsqrt")
def _rsqrt(graph: OnnxGraph, operation: tf.Operation) -> None:
    _elementwise(graph, operation, lambda name: graph.add("Reciprocal", graph.add("Sqrt", name)))


@_handles("NotEqual")
def _not_equal(graph: OnnxGraph, operation: tf.Operation) -> None:
    _elementwise(graph, operation, lambda one, other: graph.add("Not", graph.add("Equal", one, other)))


@_handles("Cast")
def _cast(graph: OnnxGraph, operation: tf.Operation) -> None:
    _elementwise(graph, operation, lambda name: graph.cast(name, operation.outputs[0].dtype))


@_handles("DivNoNan")
def _divide_no_nan(graph: OnnxGraph, operation: tf.Operation) -> None:
    zero = graph.constant(0, np.float32)
    _elementwise(
        graph,
        operation,
        lambda one, other: graph.add("Where", graph.add("Equal", other, zero), zero, graph.add("Div", one, other)),
    )


@_handles("FloorDiv")
def _floor_div(graph: OnnxGraph, operation: tf.Operation) -> None:
    def divide(one: str, other: str) -> str:
        if operation.outputs[0].dtype.is_floating:
            return graph.add("Floor", graph.add("Div", one, other))
        return graph.add("Div", graph.add("Sub", one, graph.add("Mod", one, other)), other)

    _elementwise(graph, operation, divide)


@_handles("ZerosLike", "OnesLike")
def _filled_like(graph: OnnxGraph, operation: tf.Operation) -> None:
    value = np.array([operation.type == "OnesLike"], operation.outputs[0].dtype.as_numpy_dtype)
    shape = graph.add("Shape", graph.get(operation.inputs[0]))
    graph.set(
        operation.outputs[0], graph.add("ConstantOfShape", shape, value=onnx.numpy_helper.from_array(value, "value"))
    )


# --- networks ---------------------------------------------------------------------------------------------------------


def _same_pads(sides: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the padding of TensorFlow's SAME: rows before, columns before, rows after, columns after."""
    totals = [
        max((-(-side // stride) - 1) * stride + size - side, 0)
        for side, size, stride in zip(sides, kernel, strides, strict=True)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def _pads(operation: tf.Operation, sides: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    padding = operation.get_attr("padding").decode()
    if padding == "EXPLICIT":
        (top, bottom, left, right) = operation.get_attr("explicit_paddings")[2:6]
        return [top, left, bottom, right]
    return _same_pads(sides, kernel, strides) if padding == "SAME" else [0, 0, 0, 0]


@_handles("Conv2D", "DepthwiseConv2dNative")
def _convolution(graph: OnnxGraph, operation: tf.Operation) -> None:
    features, kernel_HWIO = operation.inputs[0], _value(graph, operation.inputs[1])
    strides, dilations = (list(operation.get_attr(name))[1:3] for name in ("strides", "dilations"))
    group = features.shape[3] // kernel_HWIO.shape[2]
    if operation.type == "DepthwiseConv2dNative":
        group = features.shape[3]
        kernel_HWIO = kernel_HWIO.reshape([*kernel_HWIO.shape[:2], 1, -1])
    spread = [(side - 1) * dilation + 1 for side, dilation in zip(kernel_HWIO.shape[:2], dilations, strict=True)]
    output = graph.add(
        "Conv",
        graph.get_channels_first(features),
        graph.constant(np.ascontiguousarray(kernel_HWIO.transpose(3, 2, 0, 1))),
        strides=strides,
        dilations=dilations,
        group=group,
        pads=_pads(operation, features.shape[1:3], spread, strides),
    )
    graph.set_channels_first(operation.outputs[0], output)


@_handles("Conv2DBackpropInput")
def _transposed_convolution(graph: OnnxGraph, operation: tf.Operation) -> None:
    _require(operation, set(operation.get_attr("dilations")) == {1}, "dilations")
    kernel_HWOI, features = _value(graph, operation.inputs[1]), operation.inputs[2]
    strides, sides = list(operation.get_attr("strides"))[1:3], operation.outputs[0].shape[1:3]
    pads = _pads(operation, sides, kernel_HWOI.shape[:2], strides)
    output_padding = [
        side - ((before - 1) * stride + size - pads[axis] - pads[axis + 2])
        for axis, (side, before, stride, size) in enumerate(
            zip(sides, features.shape[1:3], strides, kernel_HWOI.shape[:2], strict=True)
        )
    ]
    output = graph.add(
        "ConvTranspose",
        graph.get_channels_first(features),
        graph.constant(np.ascontiguousarray(kernel_HWOI.transpose(3, 2, 0, 1))),
        strides=strides,
        pads=pads,
        output_padding=output_padding,
    )
    graph.set_channels_first(operation.outputs[0], output)


@_handles("FusedBatchNormV3")
def _batch_norm(graph: OnnxGraph, operation: tf.Operation) -> None:
    _require(operation, not operation.get_attr("is_training"), "is_training")
    features, *statistics = operation.inputs
    names = [graph.get(each) for each in statistics]
    epsilon = operation.get_attr("epsilon")
    output = graph.add("BatchNormalization", graph.get_channels_first(features), *names, epsilon=epsilon)
    graph.set_channels_first(operation.outputs[0], output)


@_handles("MaxPool", "AvgPool")
def _pool(graph: OnnxGraph, operation: tf.Operation) -> None:
    kernel, strides = (list(operation.get_attr(name))[1:3] for name in ("ksize", "strides"))
    (features,) = operation.inputs
    pads = _pads(operation, features.shape[1:3], kernel, strides)
    kind = {"MaxPool": "MaxPool", "AvgPool": "AveragePool"}[operation.type]
    output = graph.add(kind, graph.get_channels_first(features), kernel_shape=kernel, strides=strides, pads=pads)
    graph.set_channels_first(operation.outputs[0], output)


@_handles("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor")
def _resize(graph: OnnxGraph, operation: tf.Operation) -> None:
    """Sources: tensorflow/core/kernels/image/resize_{bilinear,bicubic,nearest_neighbor}_op.cc."""
    image, size_hw = operation.inputs
    has_half_pixel_centers = operation.get_attr("half_pixel_centers")
    position = "half_pixel" if has_half_pixel_centers else "asymmetric"
    if operation.get_attr("align_corners"):
        _require(operation, operation.type != "ResizeNearestNeighbor", "align_corners")
        position = "align_corners"
    settings: dict[str, Any] = {"coordinate_transformation_mode": position, "mode": "linear"}
    if operation.type == "ResizeBicubic":
        coefficient = -0.5 if has_half_pixel_centers else -0.75
        settings |= {"mode": "cubic", "cubic_coeff_a": coefficient, "exclude_outside": int(has_half_pixel_centers)}
    if operation.type == "ResizeNearestNeighbor":
        rounding = "round_prefer_ceil" if has_half_pixel_centers else "floor"
        settings |= {"mode": "nearest", "nearest_mode": rounding}
    name = graph.get_channels_first(image)
    if image.dtype != tf.float32 and operation.outputs[0].dtype == tf.float32:
        name = graph.cast(name, tf.float32)
    kept = graph.add("Slice", graph.add("Shape", name), graph.ints(0), graph.ints(2))
    sizes = graph.add("Concat", kept, graph.get_int64(size_hw), axis=0)
    graph.set_channels_first(operation.outputs[0], graph.add("Resize", name, "", "", sizes, **settings))


@_handles("CropAndResize")
def _crop_and_resize(graph: OnnxGraph, operation: tf.Operation) -> None:
    """Sample each box of `crops._crop_one_map`, which has equally many boxes for each image, in their order.

    That function makes a border of zeros, where positions outside of the map would be sampled in another way.
    Source: tensorflow/core/kernels/image/crop_and_resize_op.cc; GridSample has positions of -1 to 1.
    """
    image, boxes, _, size_hw = operation.inputs
    name, (rows, columns) = graph.get_channels_first(image), _value(graph, size_hw).tolist()
    num_images = graph.add("Slice", graph.add("Shape", name), graph.ints(0), graph.ints(1))
    shape = graph.add("Concat", num_images, graph.ints(-1, 4), axis=0)
    sides = graph.add_many("Split", [graph.add("Reshape", graph.get(boxes), shape)], 4, axis=2)  # each [B, P, 1]

    def positions(low: str, high: str, num: int) -> str:
        steps = graph.constant(np.linspace(0, 2, num) if num > 1 else [1], np.float32)
        distance = graph.add("Mul", graph.add("Sub", high, low), steps)
        twice = graph.add("Add", graph.add("Add", low, low), distance)
        return graph.add("Sub", twice, graph.constant(1, np.float32))

    ymin, xmin, ymax, xmax = sides
    y_BPh1 = graph.add("Unsqueeze", positions(ymin, ymax, rows), graph.ints(3))
    x_BP1w = graph.add("Unsqueeze", positions(xmin, xmax, columns), graph.ints(2))
    whole = graph.add("Shape", graph.add("Add", y_BPh1, x_BP1w))
    grid = [graph.add("Unsqueeze", graph.add("Expand", each, whole), graph.ints(4)) for each in (x_BP1w, y_BPh1)]
    rows_first = graph.add("Concat", num_images, graph.ints(-1, columns, 2), axis=0)
    grid_BRw2 = graph.add("Reshape", graph.add("Concat", *grid, axis=4), rows_first)
    sampled_BCRw = graph.add("GridSample", name, grid_BRw2, align_corners=1)
    boxes_apart = graph.add("Concat", num_images, graph.ints(image.shape[3], -1, rows, columns), axis=0)
    crops_BCPhw = graph.add("Reshape", sampled_BCRw, boxes_apart)
    crops_BPhwC = graph.add("Transpose", crops_BCPhw, perm=(0, 2, 3, 4, 1))
    joined = graph.add("Reshape", crops_BPhwC, graph.ints(-1, rows, columns, image.shape[3]))
    graph.set(operation.outputs[0], joined)


@_handles("Softmax")
def _softmax(graph: OnnxGraph, operation: tf.Operation) -> None:
    graph.set(operation.outputs[0], graph.add("Softmax", graph.get(operation.inputs[0]), axis=-1))


@_handles("Einsum")
def _einsum(graph: OnnxGraph, operation: tf.Operation) -> None:
    name = graph.add("Einsum", *map(graph.get, operation.inputs), equation=operation.get_attr("equation").decode())
    graph.set(operation.outputs[0], name)


@_handles("MatMul", "BatchMatMulV2")
def _multiply_matrices(graph: OnnxGraph, operation: tf.Operation) -> None:
    flags = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    names = []
    for tensor, flag in zip(operation.inputs, flags, strict=True):
        axes = list(range(tensor.shape.rank))
        perm = [*axes[:-2], axes[-1], axes[-2]]
        name = graph.get(tensor)
        names.append(graph.add("Transpose", name, perm=perm) if operation.get_attr(flag) else name)
    graph.set(operation.outputs[0], graph.add("MatMul", *names))


# --- reduction and order ----------------------------------------------------------------------------------------------

_REDUCTIONS = {"Max": "ReduceMax", "Min": "ReduceMin", "Mean": "ReduceMean", "Sum": "ReduceSum"}


@_handles(*_REDUCTIONS)
def _reduce(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, keeps = operation.inputs[0], operation.get_attr("keep_dims")
    axes = [axis % tensor.shape.rank for axis in np.ravel(_value(graph, operation.inputs[1])).tolist()]
    kind = _REDUCTIONS[operation.type]
    is_channels_first = bool(keeps) and graph.has_channels_first(tensor)
    name = graph.get_channels_first(tensor) if is_channels_first else graph.get(tensor)
    axes = [_AXIS[axis] for axis in axes] if is_channels_first else axes
    if kind == "ReduceSum":  # its axes are an input since operator set 13
        output = graph.add(kind, name, graph.ints(*axes), keepdims=int(keeps))
    else:
        output = graph.add(kind, name, axes=axes, keepdims=int(keeps))
    (graph.set_channels_first if is_channels_first else graph.set)(operation.outputs[0], output)


@_handles("All", "Any")
def _reduce_truth(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor = operation.inputs[0]
    axes = [axis % tensor.shape.rank for axis in np.ravel(_value(graph, operation.inputs[1])).tolist()]
    kind = "ReduceMin" if operation.type == "All" else "ReduceMax"
    number = graph.cast(graph.get(tensor), tf.int32)
    keeps = int(operation.get_attr("keep_dims"))
    reduced = graph.add(kind, number, axes=axes, keepdims=keeps) if axes else number
    graph.set(operation.outputs[0], graph.cast(reduced, tf.bool))


@_handles("ArgMax", "ArgMin")
def _arg_max(graph: OnnxGraph, operation: tf.Operation) -> None:
    axis = _number(graph, operation.inputs[1])
    found = graph.add(operation.type, graph.get(operation.inputs[0]), axis=axis, keepdims=0)
    output = operation.outputs[0]
    graph.set(output, found if output.dtype == tf.int64 else graph.cast(found, output.dtype))


@_handles("TopKV2")
def _top_k(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, num = operation.inputs
    num_1 = graph.add("Reshape", graph.get_int64(num), graph.ints(1))
    values, places = graph.add_many("TopK", [graph.get(tensor), num_1], 2, axis=-1)
    graph.set(operation.outputs[0], values)
    graph.set(operation.outputs[1], graph.cast(places, operation.outputs[1].dtype))


# --- shapes and places ------------------------------------------------------------------------------------------------


@_handles("Shape")
def _shape(graph: OnnxGraph, operation: tf.Operation) -> None:
    (tensor,) = operation.inputs
    if graph.has_channels_first(tensor):
        sizes = graph.add("Shape", graph.get_channels_first(tensor))
        shape = graph.add("Gather", sizes, graph.ints(*TO_CHANNELS_LAST), axis=0)
    else:
        shape = graph.add("Shape", graph.get(tensor))
    graph.set(operation.outputs[0], graph.cast(shape, operation.outputs[0].dtype))


@_handles("Reshape")
def _reshape(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, shape = operation.inputs
    if times_hw := _repeated(graph, operation):
        source = tensor.op.inputs[0].op.inputs[0]
        scales = graph.constant([1, 1, *times_hw], np.float32)
        settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        name = graph.add("Resize", graph.get_channels_first(source), "", scales, **settings)
        graph.set_channels_first(operation.outputs[0], name)
        return
    sizes = [-1 if size is None else size for size in operation.outputs[0].shape]
    is_known = sizes.count(-1) <= 1 and 0 not in sizes
    name = graph.ints(*sizes) if is_known else graph.get_int64(shape)
    graph.set(operation.outputs[0], graph.add("Reshape", graph.get(tensor), name))


def _repeated(graph: OnnxGraph, operation: tf.Operation) -> tuple[int, int] | None:
    """Return how often each row and column is repeated, if this is the end of `tf.repeat` of an image."""
    tile = operation.inputs[0].op
    if tile.type != "Tile" or tile.inputs[0].op.type != "ExpandDims" or operation.outputs[0].shape.rank != 4:
        return None
    source, axis = tile.inputs[0].op.inputs[0], _number(graph, tile.inputs[0].op.inputs[1])
    times = graph.value(tile.inputs[1])
    if source.shape.rank != 4 or axis not in (2, 3) or times is None or times.prod() != times[axis]:
        return None
    return (int(times[axis]), 1) if axis == 2 else (1, int(times[axis]))


@_handles("Squeeze")
def _squeeze(graph: OnnxGraph, operation: tf.Operation) -> None:
    shape = operation.inputs[0].shape
    axes = list(operation.get_attr("squeeze_dims")) or [axis for axis, size in enumerate(shape) if size == 1]
    graph.set(operation.outputs[0], graph.add("Squeeze", graph.get(operation.inputs[0]), graph.ints(*axes)))


@_handles("ExpandDims")
def _expand_dims(graph: OnnxGraph, operation: tf.Operation) -> None:
    axis = _number(graph, operation.inputs[1])
    graph.set(operation.outputs[0], graph.add("Unsqueeze", graph.get(operation.inputs[0]), graph.ints(axis)))


@_handles("Pack")
def _pack(graph: OnnxGraph, operation: tf.Operation) -> None:
    axis, values = operation.get_attr("axis"), [graph.value(tensor) for tensor in operation.inputs]
    parts = [
        graph.add("Unsqueeze", graph.get(tensor), graph.ints(axis))
        if value is None
        else graph.constant(np.expand_dims(value, axis))
        for tensor, value in zip(operation.inputs, values, strict=True)
    ]
    graph.set(operation.outputs[0], graph.add("Concat", *parts, axis=axis))


@_handles("Unpack")
def _unpack(graph: OnnxGraph, operation: tf.Operation) -> None:
    name, axis = graph.get(operation.inputs[0]), operation.get_attr("axis")
    for number, output in enumerate(operation.outputs):
        graph.set(output, graph.add("Gather", name, graph.constant(number, np.int64), axis=axis))


@_handles("ConcatV2")
def _concat(graph: OnnxGraph, operation: tf.Operation) -> None:
    *tensors, last = operation.inputs
    axis = _number(graph, last)
    if tensors[0].shape.rank == 4 and all(map(graph.has_channels_first, tensors)):
        names = map(graph.get_channels_first, tensors)
        graph.set_channels_first(operation.outputs[0], graph.add("Concat", *names, axis=_AXIS[axis % 4]))
    else:
        graph.set(operation.outputs[0], graph.add("Concat", *map(graph.get, tensors), axis=axis))


@_handles("Split")
def _split(graph: OnnxGraph, operation: tf.Operation) -> None:
    axis, tensor = _number(graph, operation.inputs[0]), operation.inputs[1]
    names = graph.add_many("Split", [graph.get(tensor)], len(operation.outputs), axis=axis)
    for output, name in zip(operation.outputs, names, strict=True):
        graph.set(output, name)


@_handles("Pad", "PadV2")
def _pad(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, paddings, *rest = operation.inputs
    value, dtype = graph.value(paddings), tensor.dtype.as_numpy_dtype
    filling = graph.get(rest[0]) if rest else graph.constant(0, dtype)
    if value is not None and graph.has_channels_first(tensor):
        pads = graph.ints(*value[list(TO_CHANNELS_FIRST)].T.ravel().tolist())
        name = graph.add("Pad", graph.get_channels_first(tensor), pads, filling)
        graph.set_channels_first(operation.outputs[0], name)
        return
    if value is None:
        turned = graph.add("Transpose", graph.get_int64(paddings), perm=(1, 0))
        pads = graph.add("Reshape", turned, graph.ints(-1))
    else:
        pads = graph.ints(*value.T.ravel().tolist())
    graph.set(operation.outputs[0], graph.add("Pad", graph.get(tensor), pads, filling))


@_handles("Tile")
def _tile(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, times = operation.inputs
    graph.set(operation.outputs[0], graph.add("Tile", graph.get(tensor), graph.get_int64(times)))


@_handles("Transpose")
def _transpose(graph: OnnxGraph, operation: tf.Operation) -> None:
    perm = _value(graph, operation.inputs[1]).tolist()
    graph.set(operation.outputs[0], graph.add("Transpose", graph.get(operation.inputs[0]), perm=perm))


@_handles("ReverseV2")
def _reverse(graph: OnnxGraph, operation: tf.Operation) -> None:
    axes = np.ravel(_value(graph, operation.inputs[1])).tolist()
    lasts, ends = [-1] * len(axes), [np.iinfo(np.int64).min] * len(axes)
    bounds = (graph.ints(*values) for values in (lasts, ends, axes, lasts))
    graph.set(operation.outputs[0], graph.add("Slice", graph.get(operation.inputs[0]), *bounds))


@_handles("BroadcastTo")
def _broadcast(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, shape = operation.inputs
    graph.set(operation.outputs[0], graph.add("Expand", graph.get(tensor), graph.get_int64(shape)))


@_handles("BroadcastArgs")
def _common_shape(graph: OnnxGraph, operation: tf.Operation) -> None:
    one, other = operation.inputs
    if one.shape != other.shape:
        raise InputError("export.onnx: shapes of different ranks cannot be broadcast.")
    graph.set(operation.outputs[0], graph.add("Max", graph.get(one), graph.get(other)))


@_handles("Fill")
def _fill(graph: OnnxGraph, operation: tf.Operation) -> None:
    shape, value = operation.inputs
    graph.set(operation.outputs[0], graph.add("Expand", graph.get(value), graph.get_int64(shape)))


@_handles("Range")
def _range(graph: OnnxGraph, operation: tf.Operation) -> None:
    graph.set(operation.outputs[0], graph.add("Range", *map(graph.get, operation.inputs)))


@_handles("GatherV2")
def _gather(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, places, axis = operation.inputs
    num_batch, axis = operation.get_attr("batch_dims"), _number(graph, axis)
    if num_batch == 0:
        name = graph.add("Gather", graph.get(tensor), graph.get(places), axis=axis)
    elif axis == num_batch:
        indices = graph.add("Unsqueeze", graph.get_int64(places), graph.ints(places.shape.rank))
        name = graph.add("GatherND", graph.get(tensor), indices, batch_dims=num_batch)
    else:
        raise InputError(f"export.onnx: tf.gather along axis {axis} of {num_batch} batch axes cannot be converted.")
    graph.set(operation.outputs[0], name)


@_handles("TensorScatterUpdate")
def _scatter(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, places, values = operation.inputs
    name = graph.add("ScatterND", graph.get(tensor), graph.get_int64(places), graph.get(values))
    graph.set(operation.outputs[0], name)


@_handles("Slice")
def _slice(graph: OnnxGraph, operation: tf.Operation) -> None:
    tensor, begin, size = operation.inputs
    begins, sizes = graph.get_int64(begin), graph.get_int64(size)
    is_open = graph.add("Less", sizes, graph.ints(0))
    ends = graph.add("Where", is_open, graph.ints(np.iinfo(np.int64).max), graph.add("Add", begins, sizes))
    graph.set(operation.outputs[0], graph.add("Slice", graph.get(tensor), begins, ends))


@_handles("StridedSlice")
def _strided_slice(graph: OnnxGraph, operation: tf.Operation) -> None:
    """Source of the masks: tensorflow/core/ops/array_ops.cc, StridedSlice."""
    tensor = operation.inputs[0]
    begins, ends, strides = (np.ravel(_value(graph, each)).tolist() for each in operation.inputs[1:])
    masks = {
        name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    num_used = sum(not (masks["new_axis"] | masks["ellipsis"]) >> place & 1 for place in range(len(begins)))
    bounds: list[tuple[int, int, int, int]] = []  # begin, end, stride, axis
    axis, shrunk, added, num_out = 0, [], [], 0
    for place, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        has = {name: bool(mask >> place & 1) for name, mask in masks.items()}
        if has["ellipsis"]:
            axis, num_out = axis + tensor.shape.rank - num_used, num_out + tensor.shape.rank - num_used
        elif has["new_axis"]:
            added.append(num_out)
            num_out += 1
        else:
            limit = np.iinfo(np.int64).max if stride > 0 else np.iinfo(np.int64).min
            if has["shrink_axis"]:
                bounds.append((begin, begin + 1 if begin != -1 else np.iinfo(np.int64).max, 1, axis))
                shrunk.append(axis)
            else:
                first = (0 if stride > 0 else -1) if has["begin"] else begin
                bounds.append((first, limit if has["end"] else end, stride, axis))
                num_out += 1
            axis += 1
    name = graph.get(tensor)
    bounds = [each for each in bounds if each[:3] != (0, np.iinfo(np.int64).max, 1)]
    if bounds:
        first, last, step, axes = zip(*bounds, strict=True)
        name = graph.add("Slice", name, *(graph.ints(*values) for values in (first, last, axes, step)))
    if shrunk:
        name = graph.add("Squeeze", name, graph.ints(*shrunk))
    if added:
        name = graph.add("Unsqueeze", name, graph.ints(*added))
    graph.set(operation.outputs[0], name)


# --- control flow -----------------------------------------------------------------------------------------------------


@_handles("StatelessIf", "If")
def _branch(graph: OnnxGraph, operation: tf.Operation) -> None:
    condition, *arguments = operation.inputs
    names = list(map(graph.get, arguments))
    branches = {}
    for attribute in ("then_branch", "else_branch"):
        inner = graph.inner()
        function = graph.function(operation, attribute, [each.shape for each in arguments])
        found = inner.as_outputs(inner.call(function, names))
        infos = [value_info(name, tensor) for name, tensor in zip(found, function.outputs, strict=True)]
        branches[attribute] = inner.to_proto([], infos)
    outputs = graph.add_many("If", [graph.get(condition)], len(operation.outputs), **branches)
    for tensor, name in zip(operation.outputs, outputs, strict=True):
        graph.set(tensor, name)


@_handles("StatelessWhile", "While")
def _loop(graph: OnnxGraph, operation: tf.Operation) -> None:
    """Values that no round changes are read from outside instead of being passed from round to round."""
    shapes = [tensor.shape for tensor in operation.outputs]
    body, condition = (graph.function(operation, attribute, shapes) for attribute in ("body", "cond"))
    is_state = [_source(after) is not before for before, after in zip(body.inputs, body.outputs, strict=True)]
    states = list(itertools.compress(operation.outputs, is_state))
    start = list(map(graph.get, operation.inputs))
    (goes_on,) = graph.call(condition, start)

    inner, new = graph.inner(), graph.names.new
    before = [new("state") if changes else name for name, changes in zip(start, is_state, strict=True)]
    after = inner.call(body, before)
    goes_on_after, *after = inner.as_outputs([*inner.call(condition, after), *itertools.compress(after, is_state)])
    round_number, truth = (
        functools.partial(onnx.helper.make_tensor_value_info, elem_type=elem_type, shape=[])
        for elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
    )
    proto = inner.to_proto(
        [
            round_number(new("round")),
            truth(new("goes_on")),
            *map(value_info, itertools.compress(before, is_state), states),
        ],
        [truth(goes_on_after), *map(value_info, after, states)],
    )
    inputs = ["", goes_on, *itertools.compress(start, is_state)]
    results = iter(graph.add_many("Loop", inputs, len(states), body=proto))
    for tensor, name, changes in zip(operation.outputs, start, is_state, strict=True):
        graph.set(tensor, next(results) if changes else name)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that `tensor` is a copy of."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
