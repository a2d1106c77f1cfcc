"""Claim: the training input produces at least 0.7 times as many images per second as bare decoding and resizing, and at
least 3 times as many as the Object Detection API's.

640x480 JPEGs in TFRecord shards, made of scikit-learn's sample photographs, become batches of 320x320 with flip and SSD
crop ("crop"), or with flip and four color changes ("colour"). "limit" is the minimum of any input: read, decode and
resize the whole image, batch. Our process and the peer's alternate on all cores; the ratios are medians over rounds.
Prints a table and writes JSON.

    python benchmarks/input_pipeline.py [--rounds 5] [--batches 60] [--output input_pipeline.json]
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peers.timed_process import TimedProcess, answer_requests
from tools.disturbance import process_seconds
from tools.surroundings import NO_PEER, PEER_PYTHON, describe_machine, has_peer

PEER_SCRIPT = Path(__file__).parent / "peers/odapi_train_input.py"
PRESET, SIDE, BATCH_SIZE = "ssd_mobilenet_v2_fpnlite_320x320", 320, 8
NUM_SHARDS, IMAGES_EACH, BOXES_EACH, NUM_CLASSES, JPEG_QUALITY = 4, 100, 7, 90, 75
WARM_UP = 12  # batches that come from buffers filled while the other process ran
CASES = ("crop", "colour")
GOALS = {"ours crop / limit": 0.7, "ours crop / odapi crop": 3.0, "ours colour, images/s": 600.0}


def write_inputs(folder: Path) -> None:
    """Write shards, label map, and a pipeline configuration for each case, which both systems read."""
    from detloom.schemas.contracts.label_map import LabelMap, format_label_map
    from detloom.schemas.model import augmentations
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config
    from detloom.schemas.presets.presets import find_preset

    cases = {
        "crop": (augmentations.RandomHorizontalFlip(), augmentations.SsdRandomCrop()),
        "colour": (
            augmentations.RandomHorizontalFlip(),
            augmentations.RandomAdjustBrightness(),
            augmentations.RandomAdjustContrast(),
            augmentations.RandomAdjustHue(),
            augmentations.RandomAdjustSaturation(),
        ),
    }
    preset = find_preset(PRESET).config
    for name, changes in cases.items():
        train = replace(preset.train, batch_size=BATCH_SIZE, augmentations=changes)
        config = replace(preset, train=train, model=replace(preset.model, num_classes=NUM_CLASSES))
        (folder / f"{name}.config").write_text(format_pipeline_config(config), encoding="utf-8")
    names = (f"class {number}" for number in range(NUM_CLASSES))
    (folder / "label_map.pbtxt").write_text(format_label_map(LabelMap.from_names(names)), encoding="utf-8")
    write_shards(folder)


def write_shards(folder: Path) -> None:
    from tools.made_records import write_records

    examples = make_examples(np.random.default_rng(0))
    for shard in range(NUM_SHARDS):
        write_records(folder / f"train-{shard}-of-{NUM_SHARDS}", itertools.islice(examples, IMAGES_EACH))


def make_examples(random: np.random.Generator) -> Iterator[bytes]:
    """Yield records of windows of the photographs, at 640x480."""
    from PIL import Image
    from sklearn.datasets import load_sample_images
    from tools.made_records import make_boxes, serialize

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for number in range(NUM_SHARDS * IMAGES_EACH):
        photograph = photographs[number % len(photographs)]
        height = int(random.uniform(0.5, 1.0) * photograph.height)
        width = height * 4 // 3
        top, left = random.integers(photograph.height - height + 1), random.integers(photograph.width - width + 1)
        image = photograph.crop((left, top, left + width, top + height)).resize((640, 480), Image.Resampling.BICUBIC)
        boxes = make_boxes(random, BOXES_EACH, 0.05)
        class_ids = random.integers(1, NUM_CLASSES + 1, BOXES_EACH)
        yield serialize(image, number, boxes, class_ids, jpeg_quality=JPEG_QUALITY)


def build_limit(files: list[str]) -> Any:
    import tensorflow as tf

    from detloom.schemas.contracts import example_keys as keys

    features = {keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string)}

    def to_image(serialized: tf.Tensor) -> tf.Tensor:
        image_bytes = tf.io.parse_single_example(serialized, features)[keys.IMAGE_ENCODED]
        return tf.compat.v1.image.resize(tf.io.decode_jpeg(image_bytes, channels=3), (SIDE, SIDE))

    records = tf.data.TFRecordDataset(files).repeat()
    return records.map(to_image, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH_SIZE).prefetch(2)


def serve(folder: Path) -> None:
    """Answer timing requests in a child process, as the peer's script does."""
    from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
    from detloom.schemas.contracts.label_map import read_label_map
    from detloom.schemas.odapi.pipeline_config import read_pipeline_config
    from detloom.trainer_module.data.input_pipeline import build_train_dataset
    from detloom.trainer_module.data.records import list_shards
    from detloom.trainer_module.detectors.families import family_of

    files, label_map = list_shards([str(folder / "train-*")]), read_label_map(folder / "label_map.pbtxt")
    iterators = {"limit": iter(build_limit(files))}
    for name in CASES:
        config = read_pipeline_config(folder / f"{name}.config")
        dataset = build_train_dataset(config, label_map, files, batch_size=BATCH_SIZE)
        normalize = family_of(config.model).preprocessing.normalize_padded
        # In training, the step normalizes; the peer's input pipeline does it itself.
        iterators[name] = iter(dataset.map(lambda batch, to_input=normalize: to_input(batch[IMAGE], batch[TRUE_HW])))
    for iterator in iterators.values():
        next(iterator)
    answer_requests(lambda name: next(iterators[name]))


def measure(process: TimedProcess, name: str, num_batches: int) -> dict[str, float]:
    """Return images per second, and the CPU time of the process per image in milliseconds."""
    process.seconds(name, WARM_UP)
    before = process_seconds(process.pid)
    seconds = sum(process.seconds(name, num_batches))
    cpu_seconds, num_images = process_seconds(process.pid) - before, num_batches * BATCH_SIZE
    return {"images_per_second": num_images / seconds, "cpu_ms": 1000 * cpu_seconds / num_images}


def run(num_rounds: int, num_batches: int) -> dict[str, Any]:
    """Return each round's numbers by system and case, and the ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        processes = {"ours": TimedProcess([sys.executable, __file__, "--child", name])}
        if has_peer():
            configs = [f"{case}={folder / case}.config" for case in CASES]
            arguments = [str(folder / "label_map.pbtxt"), str(folder / "train-*"), *configs]
            processes["odapi"] = TimedProcess([str(PEER_PYTHON), str(PEER_SCRIPT), *arguments])
        measured = [("ours", "limit"), *((system, case) for case in CASES for system in processes)]
        rounds: dict[str, list[dict[str, float]]] = {f"{system} {case}": [] for system, case in measured}
        for number in range(num_rounds):
            for system, case in measured:
                rounds[f"{system} {case}"].append(measure(processes[system], case, num_batches))
            print(f"  round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        for process in processes.values():
            process.close()
    rounds["limit"] = rounds.pop("ours limit")
    return {"rounds": rounds, "medians": _medians(rounds), "ratios": _ratios(rounds)}


def _medians(rounds: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: statistics.median(each[key] for each in numbers) for key in numbers[0]}
        for name, numbers in rounds.items()
    }


def _ratios(rounds: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return ratios of images per second, and of images per CPU second, which other programs disturb less."""
    pairs = [("ours crop", "limit"), ("ours crop", "odapi crop"), ("ours colour", "odapi colour")]
    ratios = {}
    for one, other in pairs:
        if other in rounds:
            both = list(zip(rounds[one], rounds[other], strict=True))
            ratios[f"{one} / {other}"] = {
                "images_per_second": statistics.median(
                    a["images_per_second"] / b["images_per_second"] for a, b in both
                ),
                "images_per_cpu_second": statistics.median(b["cpu_ms"] / a["cpu_ms"] for a, b in both),
            }
    return ratios


def print_table(result: dict[str, Any]) -> None:
    print(f"{'':24}{'images/s':>10}{'CPU ms an image':>18}")
    for name, numbers in result["medians"].items():
        print(f"{name:24}{numbers['images_per_second']:10.0f}{numbers['cpu_ms']:18.2f}")
    print(f"{'ratio':28}{'images/s':>10}{'images a CPU second':>22}")
    for name, numbers in result["ratios"].items():
        goal = f"   goal {GOALS[name]}" if name in GOALS else ""
        print(f"{name:28}{numbers['images_per_second']:10.2f}{numbers['images_per_cpu_second']:22.2f}{goal}")
    if "odapi crop" not in result["medians"]:
        print(f"odapi: {NO_PEER}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=60, help="in a round")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child)
        return
    result = run(args.rounds, args.batches)
    print_table(result)
    if args.output:
        settings = {"rounds": args.rounds, "batches": args.batches, **describe_machine()}
        result = {"settings": settings, "goals": GOALS, **result}
        args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
