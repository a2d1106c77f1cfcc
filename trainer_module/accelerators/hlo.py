"""Facts about a compiled function, from the text of its HLO (https://openxla.org/xla/operation_semantics).

The text is that before XLA's optimizations, which depend on the device:
`tf.function(f, jit_compile=True).experimental_get_compiler_ir(*arguments)(stage="hlo")`.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_TILE_ROWS, _TILE_COLUMNS = 8, 128  # of TPUs (https://cloud.google.com/tpu/docs/performance-guide)
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"(?:to_apply|body|calls)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.-]+)")
_WINDOW = re.compile(r"(\w+)=([\dx_-]+)")
_HOST_OPCODES = ("infeed", "outfeed", "send", "recv")
_HOST_TARGETS = re.compile(r'custom_call_target="[^"]*(?:[Cc]allback|Host|host)[^"]*"')
_MATRIX_OPCODES = ("convolution", "dot")
# Their operands are read and their results written; XLA fuses all others into these, or they move no data.
_UNFUSED_OPCODES = (
    *_MATRIX_OPCODES,
    "reduce",
    "reduce-window",
    "select-and-scatter",
    "sort",
    "gather",
    "scatter",
    "batch-norm-training",
    "batch-norm-grad",
    "custom-call",
    "rng-bit-generator",
)


@dataclass(frozen=True, kw_only=True)
class HloFacts:
    """Costs of one call.

    Attributes:
        flops: of convolutions and matrix products, two for each multiplication with a value that is not padding. The
            body of a loop counts once; of the branches of a condition, the most expensive one counts.
        padded_flops: the same, if the input features are padded to a multiple of 8 and the output features to 128. A
            convolution of each channel on its own is no matrix product; only its channels are padded to 128.
        moved_bytes: read and written by operations that XLA does not fuse into others; a lower bound.
        num_loops: loops whose bodies are counted once.
        num_dynamic_dimensions: dimensions whose size is only known at run time, over all results.
        num_host_transfers: operations that send data to the host or wait for it.
    """

    flops: float
    padded_flops: float
    moved_bytes: float
    num_loops: int
    num_dynamic_dimensions: int
    num_host_transfers: int

    @property
    def wasted_share(self) -> float:
        """Share of the multiplications of a TPU that pad tiles."""
        return 1 - self.flops / self.padded_flops if self.padded_flops else 0.0


class _Array(NamedTuple):
    num_bytes: int
    dims: tuple[int, ...]


class _Instruction(NamedTuple):
    opcode: str
    results: tuple[_Array, ...]
    operands: tuple[_Array, ...]
    attributes: str
    num_dynamic: int


class _Cost(NamedTuple):
    flops: float = 0.0
    padded_flops: float = 0.0
    moved_bytes: float = 0.0

    def plus(self, other: "_Cost") -> "_Cost":
        return _Cost(*(one + another for one, another in zip(self, other, strict=True)))


def facts_of_hlo(text: str) -> HloFacts:
    """Return the facts of a module.

    Raises:
        ValueError: if the text is not HLO with shapes of operands.
    """
    computations, entry = _parse(text)
    everything = [each for instructions in computations.values() for each in instructions]
    costs: dict[str, _Cost] = {}

    def cost_of(name: str) -> _Cost:
        if name not in costs:
            costs[name] = _Cost()
            for instruction in computations[name]:
                costs[name] = costs[name].plus(_own_cost(instruction)).plus(called_cost(instruction))
        return costs[name]

    def called_cost(instruction: _Instruction) -> _Cost:
        if instruction.opcode == "conditional":
            return max((cost_of(name) for name in _branches(instruction.attributes)), default=_Cost())
        total = _Cost()
        if instruction.opcode in ("call", "while", "fusion"):
            for name in _CALLED.findall(instruction.attributes):
                total = total.plus(cost_of(name))
        return total

    return HloFacts(
        **cost_of(entry)._asdict(),
        num_loops=sum(each.opcode == "while" for each in everything),
        num_dynamic_dimensions=sum(each.num_dynamic for each in everything),
        num_host_transfers=sum(_is_host_transfer(each) for each in everything),
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def _parse(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Return the instructions of each computation, and the name of the first one to run."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = header[2]
            computations[current] = []
            entry = current if header[1] else entry
        elif " = " in line and current:
            computations[current].append(_parse_instruction(_COMMENT.sub("", line.split(" = ", 1)[1])))
    if not entry:
        raise ValueError("got no ENTRY computation, required: the text of an HLO module")
    return computations, entry


def _parse_instruction(text: str) -> _Instruction:
    """Parse `RESULT opcode(OPERANDS), ATTRIBUTES`."""
    end = _end_of_parentheses(text, 0) if text.startswith("(") else text.index(" ")
    opening = text.index("(", end)
    closing = _end_of_parentheses(text, opening)
    result = text[:end]
    return _Instruction(
        opcode=text[end:opening].strip(),
        results=_arrays(result),
        operands=_arrays(text[opening:closing]),
        attributes=text[closing:],
        num_dynamic=result.count("<="),
    )


def _end_of_parentheses(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index + 1
    raise ValueError(f"got an unfinished line of HLO: {text[:80]}")


def _arrays(text: str) -> tuple[_Array, ...]:
    found = []
    for kind, bits, dims in _ARRAY.findall(text):
        sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
        num_bits = 8 if kind == "pred" else int(bits)
        found.append(_Array(math.prod(sizes) * max(num_bits, 8) // 8, sizes))
    return tuple(found)


def _branches(attributes: str) -> Iterator[str]:
    for several, one in _BRANCHES.findall(attributes):
        yield from (name.strip().lstrip("%") for name in (several or one).split(","))


def _is_host_transfer(instruction: _Instruction) -> bool:
    is_callback = instruction.opcode == "custom-call" and bool(_HOST_TARGETS.search(instruction.attributes))
    return instruction.opcode in _HOST_OPCODES or is_callback


# --- costs ------------------------------------------------------------------------------------------------------------


def _own_cost(instruction: _Instruction) -> _Cost:
    moved = 0.0
    if instruction.opcode in _UNFUSED_OPCODES:
        moved = float(sum(each.num_bytes for each in (*instruction.results, *instruction.operands)))
    if instruction.opcode not in _MATRIX_OPCODES:
        return _Cost(moved_bytes=moved)
    flops, padding = _of_dot(instruction) if instruction.opcode == "dot" else _of_convolution(instruction)
    return _Cost(flops, flops * padding, moved)


def _padding(size: int, tile: int) -> float:
    return -(-size // tile) * tile / max(size, 1)


def _of_dot(dot: _Instruction) -> tuple[float, float]:
    """Return the FLOPs, and the factor by which padding enlarges them."""
    left, right = (operand.dims for operand in dot.operands)
    contracted = math.prod(left[i] for i in _numbers(dot.attributes, "lhs_contracting_dims"))
    summed = (*_numbers(dot.attributes, "rhs_contracting_dims"), *_numbers(dot.attributes, "rhs_batch_dims"))
    outputs = math.prod(size for i, size in enumerate(right) if i not in summed)
    padding = _padding(contracted, _TILE_ROWS) * _padding(outputs, _TILE_COLUMNS)
    return 2.0 * math.prod(dot.results[0].dims) * contracted, padding


def _of_convolution(convolution: _Instruction) -> tuple[float, float]:
    """Return the FLOPs, and the factor by which padding enlarges them.

    As XLA's HloCostAnalysis, it counts neither taps outside of the image nor those in the gaps of a dilated one.
    """
    match = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.attributes)
    if match is None:
        raise ValueError(f"got a convolution without dim_labels: {convolution.attributes[:80]}")
    image, kernel = (operand.dims for operand in convolution.operands)
    result = convolution.results[0].dims
    image_labels, kernel_labels, result_labels = match.groups()
    window = re.search(r"window=\{([^}]*)\}", convolution.attributes)
    settings = dict(_WINDOW.findall(window[1])) if window else {}
    taps = 1.0
    for axis in sorted(filter(str.isdigit, kernel_labels)):
        taps *= _num_taps(
            image[image_labels.index(axis)],
            kernel[kernel_labels.index(axis)],
            result[result_labels.index(axis)],
            {name: values.split("x")[int(axis)] for name, values in settings.items()},
        )
    inputs, outputs = kernel[kernel_labels.index("i")], kernel[kernel_labels.index("o")]
    groups = max(
        int(found) for found in (1, *re.findall(r"(?:feature|batch)_group_count=(\d+)", convolution.attributes))
    )
    images, features = result[result_labels.index("b")], result[result_labels.index("f")]
    if groups >= outputs:
        padding = _padding(outputs, _TILE_COLUMNS)
    else:
        padding = _padding(inputs, _TILE_ROWS) * _padding(outputs // groups, _TILE_COLUMNS)
    return 2.0 * images * features * inputs * taps, padding


def _num_taps(image: int, kernel: int, result: int, window: dict[str, str]) -> int:
    """Count the pairs of an output position and a value of the kernel that meet a value of the image."""
    low = int(window.get("pad", "0_0").split("_")[0])
    stride, gap = int(window.get("stride", 1)), int(window.get("lhs_dilate", 1))
    spread = int(window.get("rhs_dilate", 1))
    positions = np.arange(result)[:, None] * stride + np.arange(kernel)[None] * spread - low
    return int(((positions >= 0) & (positions <= (image - 1) * gap) & (positions % gap == 0)).sum())


def _numbers(attributes: str, name: str) -> Sequence[int]:
    match = re.search(rf"\b{name}=\{{([\d,]*)\}}", attributes)
    return [int(each) for each in match[1].split(",") if each] if match else []
