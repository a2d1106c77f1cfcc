"""Our counterpart of `peers/odapi_train.py`: training with checkpoints, and detections of each checkpoint.

python our_train.py train CONFIG_JSON EXAMPLES RUN_DIR
python our_train.py detect CONFIG_JSON RECORDS OUTPUT_DIR CHECKPOINT...
"""

import itertools
import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.data.input_pipeline import build_eval_dataset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.weights.own_checkpoint import weights_by_path
from detloom.trainer_module.weights.restore import find_trained

BATCH_SIZE = 8


def train_run(config_path: str, examples: str, run_dir: str) -> None:
    logging.basicConfig(level=logging.INFO)
    config, run = read_config(config_path), Path(run_dir)
    run.mkdir(parents=True)
    (run / "started.json").write_text(json.dumps({"time": time.time()}))
    files = {split: [f"{examples}/Split-{split}/*tfrecord*"] for split in ("train", "eval")}
    train(config, read_label_map(Path(examples, "label_map.pbtxt")), files["train"], files["eval"], run)


def read_config(path: str) -> TrainEvalConfig:
    return from_json(TrainEvalConfig, Path(path).read_text())


def detect(config_path: str, records: str, output_dir: str, *checkpoints: str) -> None:
    """Write COCO results to OUTPUT_DIR/STEP.json; an image's id is its number, starting at 1."""
    config = read_config(config_path)
    label_map = read_label_map(Path(records).parent.parent / "label_map.pbtxt")
    detector = build_detector(config.model, label_map)
    files = sorted(tf.io.gfile.glob(records))
    datasets = [
        build_eval_dataset(config, label_map, [file], batch_size=BATCH_SIZE) for file in files
    ]  # one data set per file, to keep the order
    compiled = tf.function(detector.detect, reduce_retracing=True)
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    for checkpoint in checkpoints:
        restore(config, detector, checkpoint)
        step = int(re.findall(r"\d+", Path(checkpoint).name)[-1])
        (output / f"{step}.json").write_text(json.dumps(results_of(compiled, datasets)))


def restore(config: TrainEvalConfig, detector: Detector, checkpoint: str) -> None:
    """Replace the trained weights by their averages if those are evaluated."""
    network = weights_by_path(detector.network)
    tf.train.Checkpoint(network=network).read(checkpoint).expect_partial().assert_existing_objects_matched()
    if config.eval.use_moving_averages:
        averages = {path: network[path] for path in find_trained(config.train, detector).by_path}
        tf.train.Checkpoint(averaged_weights=averages).read(
            checkpoint
        ).expect_partial().assert_existing_objects_matched()


def results_of(compiled: Any, datasets: Sequence[tf.data.Dataset]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    number = 0
    for batch in itertools.chain.from_iterable(datasets):
        found = {key: value.numpy() for key, value in compiled(batch["image"], batch["true_hw"]).items()}
        for i, (height, width) in enumerate(batch["image_hw"].numpy().tolist()):
            number += 1
            for k in range(int(found[names.NUM_DETECTIONS][i])):
                ymin, xmin, ymax, xmax = found[names.BOXES][i, k].tolist()
                results.append(
                    {
                        "image_id": number,
                        "category_id": int(found[names.CLASSES][i, k]),
                        "bbox": [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height],
                        "score": float(found[names.SCORES][i, k]),
                    }
                )
    return results


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "train":
        train_run(*arguments)
    else:
        detect(*arguments)


if __name__ == "__main__":
    main()
