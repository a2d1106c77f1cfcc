"""Claim: COCO metrics of 5,000 images are computed at least 10 times faster than by pycocotools, with equal results; a
whole evaluation takes at most 15 % longer than its inference.

Metrics, without a model: synthetic ground truth and detections, 100 per image in 80 classes; pycocotools, detloom, and
for information each further part of measuring and comparing. Node: 500 images of 640x480 through an exported SSD
MobileNetV2 FPNLite 320 with random weights: DetectionEvaluator's `evaluate` with and without its latency measurement,
and "inference": loading the model and calling it on the same batches in a plain loop. Each measurement runs in a
separate process, and the kinds alternate. "MB before" is the memory of the process when a part began (data, libraries,
remains of earlier parts), "peak" its maximum until the end of the part. Prints a table, writes JSON.

    python benchmarks/evaluation.py [--only metrics] [--rounds 3] [--images 5000] [--output evaluation.json]
"""

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import numpy as np
from tools.disturbance import run_child
from tools.made_detections import IMAGE_HW, Size, count_objects, make_boxes, make_detections, make_split
from tools.surroundings import describe_machine

if TYPE_CHECKING:
    from detloom.schemas.run_file.evaluator_and_gates import Evaluator

KINDS = {"metrics": ("pycocotools", "ours", "parts"), "node": ("inference", "node", "node with latency")}
MAKE_NODE_INPUTS = "make node inputs"
GOALS = {"pycocotools / ours": "at least 10", "node / inference - 1": "at most 0.15"}
WARM_UP_IMAGES = 4  # the first call imports
PRESET, BATCH_SIZE, NUM_SHARDS, JPEG_QUALITY = "ssd_mobilenet_v2_fpnlite_320x320", 8, 4, 75
MEASURED = {
    "match_detections": "matches, by class and class-agnostic",
    "summarize_matches": "COCO numbers of matches",
    "_measure_class": "curves",
    "analyze_errors": "TIDE",
    "compute_voc_metrics": "five VOC rules",
    "split_images": "image slices",
    "measure_slices": "image slices",
    "measure_objects": "object slices",
    "count_confusion": "confusion",
    "measure_calibration": "calibration",
}  # functions in `measurements` and the names of their parts
EVALUATED = {
    "run_inference": "inference",
    "measure_latency": "latency",
    "measure_model": "measuring",
    "find_contract_problem": "contract",
    "assess": "comparing",
    "plan_images": "images",
    "_draw_images": "images",
    "write_report": "report",
}  # functions in `evaluate` and the names of their parts

Rows = dict[str, dict[str, float]]
"""Measurements by path of the part: seconds, cpu_seconds, held_mb (before the part), peak_mb."""
_Result = TypeVar("_Result")


# --- timing of functions --------------------------------------------------------------------------------------------


class Parts:
    """Time and memory of parts of this process; a nested part has a path such as `measure/TIDE`."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self._open: list[str] = []

    def call(self, name: str, function: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> _Result:
        """Call the function as a part; the times of several calls add up."""
        path = "/".join([*self._open[-1:], name])
        self._note_peak()
        with contextlib.suppress(OSError):  # if not permitted, the peak is that since the start of the process
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak to the current value
        first = {"seconds": 0.0, "cpu_seconds": 0.0, "held_mb": memory_mb("VmRSS"), "peak_mb": 0.0}
        row = self.rows.setdefault(path, first)
        self._open.append(path)
        started, cpu_started = time.perf_counter(), time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            row["seconds"] += time.perf_counter() - started
            row["cpu_seconds"] += time.process_time() - cpu_started
            self._note_peak()
            self._open.pop()

    @contextlib.contextmanager
    def watching(self, module: ModuleType, names: Mapping[str, str]) -> Iterator[None]:
        """Within the block, record functions of a module as parts with these names."""
        with contextlib.ExitStack() as stack:
            for attribute, name in names.items():
                timed = functools.partial(self.call, name, getattr(module, attribute))
                stack.enter_context(mock.patch.object(module, attribute, timed))
            yield

    def _note_peak(self) -> None:
        peak = memory_mb("VmHWM")
        for path in self._open:
            self.rows[path]["peak_mb"] = max(self.rows[path]["peak_mb"], peak)


def memory_mb(field: str) -> float:
    """Return resident memory of this process: `VmRSS` is the current value, `VmHWM` the peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:"))


# --- metrics --------------------------------------------------------------------------------------------------------


def make_options() -> "Evaluator":
    """Make options with some slices of each kind."""
    from detloom.schemas.run_file.evaluator_and_gates import Evaluator, ImageSlices, ObjectSlices, SizeBin

    return Evaluator(
        image_slices=(ImageSlices(feature="image/camera"), ImageSlices(by="num_boxes", edges=(4, 10))),
        object_slices=(ObjectSlices(by="side_px", edges=(32, 96)), ObjectSlices(by="border_distance", edges=(0.01,))),
        sizes=(SizeBin(name="tiny", max_side_px=16),),
    )


def compute_numbers(kind: str, size: Size, parts: Parts) -> dict[str, Any]:
    from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, compute_coco_metrics

    def compute(size: Size, parts: Parts) -> CocoMetrics:
        split = make_split(size)
        found = make_detections(split, size, 0)
        arguments = (split.ground_truth, found, split.label_map)
        backend = "pycocotools" if kind == "pycocotools" else "faster"
        return parts.call(kind, compute_coco_metrics, *arguments, backend=backend)

    compute(replace(size, images=WARM_UP_IMAGES), Parts())
    return {"numbers": compute(size, parts).to_dict()}


def measure_parts(size: Size, parts: Parts) -> dict[str, Any]:
    """Measure all parts of `measure` for one model, and the comparison with another model."""
    from detloom.components.evaluator import measurements
    from detloom.components.evaluator.baseline_comparison import compare
    from detloom.schemas.run_file.evaluator_and_gates import BaselineGate

    warm_up = replace(size, images=WARM_UP_IMAGES)
    split = make_split(warm_up)
    measurements.measure(split, make_detections(split, warm_up, 0), make_options())
    split = make_split(size)
    models = [make_detections(split, size, model) for model in (0, 1)]
    with parts.watching(measurements, MEASURED):
        candidate = parts.call("measure", measurements.measure, split, models[0], make_options())
    baseline = measurements.measure(split, models[1], make_options())
    comparison = parts.call("compare", compare, candidate, baseline, split.label_map, BaselineGate())
    return {"num_resamples": comparison.candidate.num_resamples}


# --- the whole node -------------------------------------------------------------------------------------------------


def write_node_inputs(folder: Path, size: Size) -> None:
    """Write `model`, an exported detector, and `examples`, records in the format of DetectionExampleGen."""
    from tools.made_records import write_records

    from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
    from detloom.schemas.presets.presets import find_preset
    from detloom.trainer_module.detectors.families import build_detector
    from detloom.trainer_module.export.saved_model import export_saved_model

    config = find_preset(PRESET).config
    config = replace(config, model=replace(config.model, num_classes=size.classes))
    label_map = LabelMap.from_names(f"class {number}" for number in range(size.classes))
    export_saved_model(build_detector(config.model, label_map), config, folder / "model")
    split_dir = folder / "examples/Split-test"
    split_dir.mkdir(parents=True)
    write_label_map(folder / "examples" / LABEL_MAP_FILE, label_map)
    examples = make_examples(size)
    for shard in range(NUM_SHARDS):
        path = split_dir / f"data_tfrecord-{shard:05}-of-{NUM_SHARDS:05}"
        write_records(path, itertools.islice(examples, -(-size.node_images // NUM_SHARDS)))


def make_examples(size: Size) -> Iterator[bytes]:
    from PIL import Image
    from tools.made_records import serialize

    random, (height, width) = np.random.default_rng(0), IMAGE_HW
    for number in range(size.node_images):
        small = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
        image = small.resize((width, height), Image.Resampling.BICUBIC)
        count = count_objects(random)
        class_ids = random.integers(1, size.classes + 1, count)
        yield serialize(image, number, make_boxes(random, count), class_ids, jpeg_quality=JPEG_QUALITY)


def infer(folder: Path, parts: Parts) -> None:
    """Measure loading and calling the model; examples are read before, and the last batch is padded."""
    import tensorflow as tf

    from detloom.schemas.contracts.detections import SIGNATURE_EXAMPLES
    from detloom.trainer_module.export.predict import LoadedSignature

    files = sorted(map(str, folder.glob("examples/Split-test/*")))
    examples = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    batches = [examples[i : i + BATCH_SIZE] for i in range(0, len(examples), BATCH_SIZE)]
    batches[-1] += batches[-1][-1:] * (BATCH_SIZE - len(batches[-1]))

    def load_and_call() -> list[Any]:
        model = parts.call("model load", LoadedSignature, str(folder / "model"), SIGNATURE_EXAMPLES)
        return parts.call("model calls", lambda: [model(batch) for batch in batches])

    parts.call("inference", load_and_call)


def evaluate_node(name: str, folder: Path, parts: Parts) -> None:
    """Measure `evaluate` as the executor calls it, without a baseline and with default settings except for latency."""
    import apache_beam as beam

    from detloom.components.evaluator import evaluate_exported as evaluate
    from detloom.components.evaluator import inference
    from detloom.components.evaluator.params import EvaluatorParams
    from detloom.schemas.run_file.evaluator_and_gates import Evaluator, Gates, LatencyGate

    gates = Gates() if name == "node with latency" else Gates(latency=LatencyGate(num_images=0))
    inputs = evaluate.EvaluationInputs(
        candidate_dir=str(folder / "model"),
        baseline_dir=None,
        examples_uris=[str(folder / "examples")],
        shard_patterns=[str(folder / "examples/Split-test/*")],
    )
    params = EvaluatorParams(settings=Evaluator(batch_size=BATCH_SIZE), gates=gates)
    load_model = inference.load_model

    def load(path: str) -> Callable[..., Any]:
        return functools.partial(parts.call, "model calls", parts.call("model load", load_model, path))

    def make_pipeline() -> beam.Pipeline:
        return beam.Pipeline(runner="DirectRunner")  # one worker, in this process

    with (
        tempfile.TemporaryDirectory(dir=folder) as out_dir,
        mock.patch.object(inference, "load_model", load),
        parts.watching(evaluate, EVALUATED),
    ):
        parts.call(name, evaluate.evaluate, inputs, params, make_pipeline, out_dir)


# --- processes and rounds -------------------------------------------------------------------------------------------


def run_kind(kind: str, folder: Path, size: Size) -> None:
    """Run one measurement (in a child process) and write its rows to a file."""
    parts, more = Parts(), {}
    if kind == MAKE_NODE_INPUTS:
        write_node_inputs(folder, size)
    elif kind in ("pycocotools", "ours"):
        more = compute_numbers(kind, size, parts)
    elif kind == "parts":
        more = measure_parts(size, parts)
    elif kind == "inference":
        infer(folder, parts)
    else:
        evaluate_node(kind, folder, parts)
    (folder / f"{kind}.json").write_text(json.dumps({"rows": parts.rows, **more}), encoding="utf-8")


def start(kind: str, folder: Path, size: Size) -> dict[str, Any]:
    """Run a child process; return its result with `others`, the share of all cores that other processes used."""
    command = [sys.executable, __file__, "--child", kind, str(folder), *size.flags()]
    child = run_child(command, folder / f"{kind}.log")
    result: dict[str, Any] = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
    return {**result, "others": child.others}


def run_rounds(
    kinds: Sequence[str], size: Size, num_rounds: int, num_pycocotools_rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Return one result per round by kind; pycocotools, which takes minutes, has its own number of rounds."""
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if set(kinds) & set(KINDS["node"]):
            start(MAKE_NODE_INPUTS, folder, size)
        for number in range(max(num_rounds, num_pycocotools_rounds)):
            for kind in kinds:
                if number >= (num_pycocotools_rounds if kind == "pycocotools" else num_rounds):
                    continue
                print(f"  round {number + 1}: {kind} ...", end=" ", file=sys.stderr, flush=True)
                result = start(kind, folder, size)
                results[kind].append(result)
                seconds = sum(row["seconds"] for path, row in result["rows"].items() if "/" not in path)
                print(
                    f"{seconds:.1f} s, other processes used {result['others']:.0%} of the cores",
                    file=sys.stderr,
                    flush=True,
                )
    return results


# --- results --------------------------------------------------------------------------------------------------------


def medians_of(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    """Return the medians over the rounds by path."""
    medians: Rows = {}
    for rounds in results.values():
        for path, first in rounds[0]["rows"].items() if rounds else ():
            values = {key: [each["rows"][path][key] for each in rounds] for key in first}
            medians[path] = {key: statistics.median(numbers) for key, numbers in values.items()}
    return medians


def find_claims(medians: Rows) -> dict[str, dict[str, float]]:
    """Return ratios of medians in wall time and in CPU time, which other programs disturb less."""

    def ratio(one: str, other: str, less: float = 0.0) -> dict[str, float]:
        return {key: medians[one][key] / medians[other][key] - less for key in ("seconds", "cpu_seconds")}

    claims = {}
    if {"pycocotools", "ours"} <= medians.keys():
        claims["pycocotools / ours"] = ratio("pycocotools", "ours")
    for name in ("node", "node with latency"):
        if {name, "inference"} <= medians.keys():
            claims[f"{name} / inference - 1"] = ratio(name, "inference", 1.0)
            claims[f"{name} / its calls of the model - 1"] = ratio(name, "inference/model calls", 1.0)
    return claims


def differing_numbers(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the names of metrics that are not equal to pycocotools' to the last digit in every round."""
    found = [each["numbers"] for kind in ("pycocotools", "ours") for each in results.get(kind, ())]
    return [name for name in found[0] if any(each[name] != found[0][name] for each in found)] if found else []


def print_table(medians: Rows, claims: Mapping[str, Mapping[str, float]]) -> None:
    print(f"{'':38}{'seconds':>10}{'CPU s':>10}{'MB before':>11}{'peak':>8}")
    for path in medians:
        if "/" not in path:
            print_part(medians, path)
    print(f"{'ratio':38}{'seconds':>10}{'CPU s':>10}")
    for name, row in claims.items():
        goal = f"   goal {GOALS[name]}" if name in GOALS else ""
        print(f"{name:38}{row['seconds']:10.2f}{row['cpu_seconds']:10.2f}{goal}")


def print_part(medians: Rows, path: str) -> None:
    """Print a part, its nested parts and the rest."""
    depth, row = path.count("/"), medians[path]
    name = "  " * depth + path.rpartition("/")[2]
    print(f"{name:38}{row['seconds']:10.2f}{row['cpu_seconds']:10.2f}{row['held_mb']:11.0f}{row['peak_mb']:8.0f}")
    inner = [each for each in medians if each.rpartition("/")[0] == path]
    for each in inner:
        print_part(medians, each)
    if inner:
        seconds, cpu_seconds = (
            row[key] - sum(medians[each][key] for each in inner) for key in ("seconds", "cpu_seconds")
        )
        name = "  " * (depth + 1) + "(rest)"
        print(f"{name:38}{seconds:10.2f}{cpu_seconds:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=100, help="per image")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--node-images", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pycocotools-rounds", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = Size(images=args.images, detections=args.detections, classes=args.classes, node_images=args.node_images)
    if args.child:
        run_kind(args.child[0], Path(args.child[1]), size)
        return
    kinds = KINDS[args.only] if args.only else [kind for kinds in KINDS.values() for kind in kinds]
    results = run_rounds(kinds, size, args.rounds, args.pycocotools_rounds)
    medians = medians_of(results)
    claims, differing = find_claims(medians), differing_numbers(results)
    print_table(medians, claims)
    if "pycocotools" in medians:
        print(f"metrics of pycocotools and detloom: {'DIFFER in ' + ', '.join(differing) if differing else 'equal'}")
    others = max((each["others"] for rounds in results.values() for each in rounds), default=0.0)
    print(f"other processes used at most {others:.0%} of the cores")
    if args.output:
        names = ("images", "detections", "classes", "node_images", "rounds", "pycocotools_rounds")
        settings = {**{name: getattr(args, name) for name in names}, **describe_machine()}
        result = {"settings": settings, "goals": GOALS, "claims": claims, "differing_numbers": differing}
        text = json.dumps({**result, "medians": medians, "runs": results}, indent=2)
        args.output.write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
