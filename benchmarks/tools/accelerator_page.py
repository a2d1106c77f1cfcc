"""The page of `benchmarks/accelerator.py`: Markdown from the results of its sections."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Result]]
"""Results by section and preset; those of the whole machine have the preset ""."""

TITLES = {
    "machine": "Machine",
    "parity": "Parity with the CPU",
    "step": "Step time",
    "scaling": "Scaling",
    "input": "Input",
    "export": "Exported model",
    "resume": "Resume after SIGTERM",
}
OF_MACHINE = ("machine", "resume")  # sections without a preset


def format_page(results: Results) -> str:
    """Return the page; a section without results is named as one that did not run."""
    parts = ["# Accelerator benchmark", _summary(results)]
    for section, title in TITLES.items():
        parts.append(f"## {title}")
        found = results.get(section, {})
        parts += list(_FORMATS[section](found, results)) if found else ["Did not run."]
        parts += [
            f"**{_where(preset)}{result['status']}:** {_cell(result['cause'])}"
            for preset, result in found.items()
            if result.get("cause")
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def has_failed(results: Results) -> bool:
    return any(result["status"] == "failed" for found in results.values() for result in found.values())


def needed_images_per_second(results: Results, preset: str) -> float | None:
    """Return the images per second of all devices that were measured: of scaling, else of the fastest step."""
    for section in ("scaling", "step"):
        rows = results.get(section, {}).get(preset, {}).get("rows", ())
        if rows:
            return max(float(row["images_per_second"]) for row in rows)
    return None


def _summary(results: Results) -> str:
    presets = list(dict.fromkeys(preset for found in results.values() for preset in found if preset))
    rows = []
    for section, title in TITLES.items():
        found = results.get(section, {})
        if section in OF_MACHINE:
            rows.append([title, *([_status(found.get(""))] * max(len(presets), 1))])
        else:
            rows.append([title, *(_status(found.get(preset)) for preset in presets or [""])])
    return _table(["", *(presets or ["result"])], rows)


def _status(result: Result | None) -> str:
    if result is None:
        return "did not run"
    return "**failed**" if result["status"] == "failed" else str(result["status"])


def _machine(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    facts = found[""]
    if "kind" not in facts:
        return
    rows = [
        ["devices", f"{facts['num_devices']} {facts['kind']}, {facts['device']}"],
        ["data sheet of the roofline", facts["chip"] or "none"],
        ["TensorFlow", facts["tensorflow"]],
    ]
    if facts["kind"] == "GPU":
        rows.append(["CUDA of its build", facts["cuda"]])
        rows.append(["products of float32", "TensorFloat-32, if the GPU has it, except where parity says float32"])
    yield _table(["", ""], rows)


def _parity(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    rows = [
        [
            preset,
            f"{row['arithmetic']}{', XLA' if row['xla'] else ''}",
            f"{row['losses']:.1e} ({row['losses_bound']:g})",
            f"{row['gradients']:.1e} ({row['gradients_bound']:g})",
            "-" if row["matched"] is None else _matched(row),
            "passed" if row["passed"] else "**failed**",
        ]
        for preset, row in _rows(found)
    ]
    yield (
        "One step and the detections from the same variables and images, compared with the CPU in float32: the largest "
        "relative difference of a loss, the largest difference of the gradient norm of a variable over the norm of the "
        "whole gradient, and the share of detections that have an equal one. In parentheses: the bound."
    )
    yield _table(["preset", "arithmetic", "losses", "gradient norms", "equal detections", "result"], rows)


def _step(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    rows = []
    for preset, result in found.items():
        for row in result.get("rows", ()):
            roofline = result["roofline_ms"]
            share = row["share_of_roofline"]
            bound = "memory" if result["is_bound_by_memory"] else "arithmetic"
            rows.append(
                [
                    preset,
                    f"{result['precision']}{', XLA' if row['xla'] else ''}",
                    str(result["images"]),
                    f"{row['ms']:.1f}",
                    f"{row['images_per_second']:,.1f}",
                    f"{result['flops'] / 1e9:,.3g}",
                    f"{row['flops_per_second'] / 1e12:.3g}",
                    "-" if roofline is None else f"{roofline:.2g} ({bound})",
                    "-" if share is None else f"{share:.1%}",
                    f"{row['first_seconds']:.1f}",
                ]
            )
    yield (
        "Median time of a training step on one device, with the transfer of its images but without reading them. The "
        "roofline is the shortest time that arithmetic or memory traffic allow by the data sheet "
        "(docs/distributed.md); the share is that of the roofline in the measured time."
    )
    headings = [
        "preset",
        "precision",
        "images",
        "ms",
        "images/s",
        "GFLOP",
        "TFLOP/s",
        "roofline ms",
        "share",
        "first s",
    ]
    yield _table(headings, rows)


def _scaling(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    rows = [
        [preset, str(row["devices"]), f"{row['images_per_second']:,.1f}", f"{row['efficiency']:.0%}"]
        for preset, row in _rows(found)
    ]
    yield "The same number of images on each device. Logical CPU devices share the cores: their rate does not grow."
    yield _table(["preset", "devices", "images/s", "efficiency"], rows)


def _input(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    rows, transfers = [], []
    for preset, result in found.items():
        if "images_per_second" not in result:
            continue
        needed, rate = needed_images_per_second(results, preset), result["images_per_second"]
        enough = "-" if needed is None else "yes" if rate >= needed else "**no**"
        rows.append([preset, f"{rate:,.1f}", "-" if needed is None else f"{needed:,.1f}", enough])
        transfers += [
            [preset, dtype, str(result["images"]), f"{each['ms']:.2f}", f"{each['bytes_per_second'] / 1e9:.2f}"]
            for dtype, each in result["transfers"].items()
        ]
    yield "Reading, augmentation and batching when nothing else runs, against the images that the measured step takes."
    yield _table(["preset", "images/s", "the step takes", "enough"], rows)
    if transfers:
        yield "Transfer of one batch of images to a device:"
        yield _table(["preset", "type", "images", "ms", "GB/s"], transfers)


def _export(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    rows = [
        [
            preset,
            *(f"{row['ms_per_image']:.1f}" for row in result["rows"]),
            _matched(result),
            "passed" if result["status"] == "passed" else "**failed**",
        ]
        for preset, result in found.items()
        if result.get("rows")
    ]
    sizes = next(([row["batch_size"] for row in result["rows"]] for result in found.values() if result.get("rows")), [])
    yield "The SavedModel on images of the network's size, compared with the detector on the CPU."
    headings = ["preset", *(f"ms per image, batch {size}" for size in sizes), "equal detections", "result"]
    yield _table(headings, rows)


def _resume(found: Mapping[str, Result], results: Results) -> Iterator[str]:
    result = found[""]
    if "num_variables" in result:
        equal = result["num_variables"] - result["num_different"]
        yield (
            "A tiny detector, `train.deterministic`, one device: stopped by SIGTERM at step "
            f"{result['stopped_at']} of {result['steps']} and started again. {equal} of {result['num_variables']} "
            f"variables of the last checkpoint are equal to the last bit to those of an uninterrupted run: "
            f"{_status(result)}."
        )


_FORMATS: dict[str, Callable[[Mapping[str, Result], Results], Iterator[str]]] = {
    "machine": _machine,
    "parity": _parity,
    "step": _step,
    "scaling": _scaling,
    "input": _input,
    "export": _export,
    "resume": _resume,
}


def _matched(row: Result) -> str:
    return f"{row['matched']:.1%} within {row['detections_tolerance']:g} ({row['matched_bound']:.0%})"


def _rows(found: Mapping[str, Result]) -> Iterator[tuple[str, Any]]:
    for preset, result in found.items():
        for row in result.get("rows", ()):
            yield preset, row


def _where(preset: str) -> str:
    return f"{preset}, " if preset else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; "" without rows."""
    if not rows:
        return ""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Escape what would end a cell or become HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
