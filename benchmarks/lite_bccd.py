"""Claim: EfficientDet-Lite0 on BCCD, from ImageNet weights and from random ones, loses at most 0.008 AP in 8 bits.

Runs the whole pipeline of pipelines/samples/bccd.yaml with EfficientDet-Lite0 twice, with the same settings and seed:
from the installed ImageNet weights and from random ones. Each run exports float32 and int8 files, which the evaluator
measures on the test split; their latency is measured here, image by image and in turn. A run that exists in the output
folder is not repeated. Prints a table and writes lite_bccd.json.

    python benchmarks/lite_bccd.py [--output DIR] [--steps 1000]
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's `detloom`

import yaml  # noqa: E402
from tools.surroundings import describe_machine, find_bccd  # noqa: E402

SAMPLE = ROOT / "pipelines/samples/bccd.yaml"
STARTS = {"imagenet": "imagenet", "random": ""}  # train.fine_tune_checkpoint by name
VARIANTS = ("float32", "int8")
NUM_TIMED_IMAGES = 40


@dataclass(frozen=True, kw_only=True)
class Row:
    """One file of one run."""

    start: str
    variant: str
    AP: float
    AP50: float
    megabytes: float
    median_ms: float


def run_file(weights: str, num_steps: int, side: int) -> dict[str, Any]:
    """Return the sample's run file for EfficientDet-Lite0; empty `weights` start from random ones."""
    settings = yaml.safe_load(SAMPLE.read_text("utf-8"))
    batch_norm = {"conv_hyperparams": {"batch_norm": {"decay": 0.95}}}
    train = settings["train"]
    rate = {**train["optimizer"]["learning_rate"], "total_steps": num_steps, "warmup_steps": max(1, num_steps // 15)}
    return {
        **{key: settings[key] for key in ("data", "train_input")},
        "name": "lite-bccd",
        "detector": "efficientdet_lite0",
        "model": {
            "image_resizer": {"min_dimension": side, "max_dimension": side},
            "feature_extractor": batch_norm,
            "anchor_generator": {"aspect_ratios": [0.75], "scales_per_octave": 2},
            "box_predictor": batch_norm,
            "loss": settings["model"]["loss"],
            "post_processing": {"batch_non_max_suppression": {"score_threshold": 0.001}},
        },
        "train": {
            **train,
            "fine_tune_checkpoint": weights,
            "num_steps": num_steps,
            "optimizer": {**train["optimizer"], "learning_rate": rate},
        },
        "eval": {**settings["eval"], "evaluate_every": max(1, num_steps // 4)},
        "export": {"tflite": list(VARIANTS)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("lite_bccd"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--side", type=int, default=320)
    parser.add_argument("--only", choices=list(STARTS))
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    os.environ["BCCD_DIR"] = str(find_bccd(given.data))
    rows: list[Row] = []
    for start in [given.only] if given.only else STARTS:
        rows += measure(start, run_file(STARTS[start], given.steps, given.side), given.output.resolve() / start)
    report = {
        "settings": {"steps": given.steps, "side": given.side, **describe_machine()},
        "rows": list(map(asdict, rows)),
    }
    (given.output / "lite_bccd.json").write_text(json.dumps(report, indent=1), "utf-8")
    print(format_table(rows))


def measure(start: str, run: Mapping[str, Any], folder: Path) -> list[Row]:
    """Run the pipeline unless its results exist, and measure its files."""
    from detloom.pipelines.local.run_local import run_locally
    from detloom.schemas.run_file.read_run_file import read_run_file

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(json.dumps(run, indent=2), "utf-8")  # JSON is YAML without aliases, which run files may not have
    print(run_locally(read_run_file(path, folder / "workspace")))  # unchanged nodes are cached
    variants = json.loads(newest(folder, "metrics.json").read_text("utf-8"))["variants"]
    files = {name: newest(folder, f"{name}.tflite") for name in VARIANTS}
    latency_ms = time_files(files, sorted((folder / "workspace").glob("**/Split-test/data_tfrecord*")))
    return [
        Row(
            start=start,
            variant=name,
            AP=variants[name]["AP"],
            AP50=variants[name]["AP50"],
            megabytes=files[name].stat().st_size / 1e6,
            median_ms=latency_ms[name],
        )
        for name in VARIANTS
    ]


def newest(folder: Path, name: str) -> Path:
    """Return the file of the newest run."""
    return max(folder.glob(f"workspace/**/{name}"), key=lambda path: path.stat().st_mtime)


def time_files(files: Mapping[str, Path], shards: Sequence[Path]) -> dict[str, float]:
    """Return the median milliseconds of one image, including decoding, resizing and suppression."""
    import tensorflow as tf

    from detloom.components.evaluator.latency import summarize, time_in_turn
    from detloom.trainer_module.export.tflite_model import TfliteDetector

    records = tf.data.TFRecordDataset(list(map(str, shards))).take(NUM_TIMED_IMAGES).as_numpy_iterator()
    models = {name: TfliteDetector(str(path)) for name, path in files.items()}
    images = list(records)
    for model in models.values():
        model(images[:1])
    return {name: summarize(seconds).median_ms for name, seconds in time_in_turn(models, images).items()}


def format_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = ["| initial weights | file | AP | AP50 | MB | ms an image |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.start} | {row.variant} | {row.AP:.3f} | {row.AP50:.3f} | {row.megabytes:.1f} | {row.median_ms:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
