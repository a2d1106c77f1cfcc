"""Claim: a full training step takes at most 1.06 times its own forward and backward pass, and less than the Object
Detection API's.

SSD MobileNetV2 FPNLite 320 at batch 8, EfficientDet-D0 512 and CenterNet ResNet-50 V2 512 at batch 2, Faster R-CNN
ResNet-50 FPN 640 at batch 1: full step, network forward and backward, targets and losses, optimizer, input. With two
stages, proposals, their sampling and the crops are part of the network. Both systems read the same records and
settings, each in a process of its own, alternating part by part, so that a noisy machine slows both. Prints a table and
writes JSON.

    python benchmarks/train_step.py [--rounds 5] [--models fpnlite d0 centernet faster_rcnn] [--output train_step.json]
"""

import argparse
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
from tools.disturbance import Disturbance, process_seconds
from tools.surroundings import NO_PEER, PEER_PYTHON, describe_machine, has_peer

PEER_SCRIPT = Path(__file__).parent / "peers/odapi_train_step.py"
MODELS = {
    "fpnlite": ("ssd_mobilenet_v2_fpnlite_320x320", 8),
    "d0": ("efficientdet_d0", 2),
    "centernet": ("centernet_resnet50_v2_512x512", 2),
    "faster_rcnn": ("faster_rcnn_resnet50_v1_fpn_640x640", 1),
}
PARTS = ("full", "network", "losses", "optimizer", "input")
CALLS = {"full": 3, "network": 3, "losses": 10, "optimizer": 10, "input": 16}  # calls per round
NUM_IMAGES, BOXES_EACH, NUM_CLASSES = 32, 5, 90


def write_inputs(folder: Path, preset_name: str, batch_size: int) -> list[str]:
    """Write pipeline configuration, records and label map in the format of both; return their paths.

    Images are 640x480 JPEG; the only augmentation is the flip, which both support.
    """
    from tools.made_records import write_records

    from detloom.schemas.contracts.label_map import LabelMap, format_label_map
    from detloom.schemas.model.augmentations import RandomHorizontalFlip
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config
    from detloom.schemas.presets.presets import find_preset

    config = find_preset(preset_name).config
    train = replace(config.train, batch_size=batch_size, augmentations=(RandomHorizontalFlip(),))
    config = replace(config, train=train, model=replace(config.model, num_classes=NUM_CLASSES))
    paths = [folder / name for name in ("pipeline.config", "train.record", "label_map.pbtxt")]
    paths[0].write_text(format_pipeline_config(config), encoding="utf-8")
    write_records(paths[1], make_examples())
    names = (f"class {number}" for number in range(NUM_CLASSES))
    paths[2].write_text(format_label_map(LabelMap.from_names(names)), encoding="utf-8")
    return [str(path) for path in paths]


def make_examples() -> Iterator[bytes]:
    from PIL import Image
    from tools.made_records import make_boxes, serialize

    random = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        small = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
        image = small.resize((640, 480), Image.Resampling.BICUBIC)
        boxes = make_boxes(random, BOXES_EACH, 0.05)
        class_ids = random.integers(1, NUM_CLASSES + 1, BOXES_EACH)
        yield serialize(image, number, boxes, class_ids, jpeg_quality=90)


class OurParts:
    """The same parts as in the peer's script."""

    def __init__(self, config_path: str, records: str, label_map_path: str) -> None:
        import tensorflow as tf

        from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
        from detloom.schemas.contracts.label_map import read_label_map
        from detloom.schemas.odapi.pipeline_config import read_pipeline_config
        from detloom.trainer_module.data.input_pipeline import build_train_dataset
        from detloom.trainer_module.detectors.families import build_detector
        from detloom.trainer_module.training.optimizers import build_optimizer
        from detloom.trainer_module.training.step import TrainSteps
        from detloom.trainer_module.weights.restore import find_trained

        config, label_map = read_pipeline_config(Path(config_path)), read_label_map(Path(label_map_path))
        self.config = replace(config, train_input=replace(config.train_input, shuffle=False))
        self.detector = build_detector(config.model, label_map)
        trained = find_trained(config.train, self.detector)
        self.variables = trained.variables
        self.optimizer = build_optimizer(config.train.optimizer)
        self.optimizer.build(self.variables)
        dataset = build_train_dataset(self.config, label_map, [records], batch_size=config.train.batch_size)
        self.iterator = iter(dataset)
        self.batch = next(self.iterator)
        self.same_batches = iter(tf.data.Dataset.from_tensors(self.batch).repeat())
        strategy = tf.distribute.get_strategy()
        self.steps = TrainSteps(config.train, self.detector, trained, self.optimizer, None, strategy)
        images = self.detector.preprocessing.normalize_padded(self.batch[IMAGE], self.batch[TRUE_HW])
        self.prepared = {**self.batch, IMAGE: images}
        self.answers = self.detector.forward(self.prepared, training=True)
        self.gradients = [tf.zeros_like(each) for each in self.variables]
        self.functions = {name: tf.function(getattr(self, name)) for name in ("network", "losses", "optimizer_alone")}

    def full(self) -> None:
        """Run one step of the training loop as a host call, on the same batch each time."""
        self.steps.run(self.same_batches, 1)

    def network(self) -> Any:
        import tensorflow as tf

        values = [variable.value for variable in self.variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            outputs = self.detector.forward(self.prepared, training=True)
            total = tf.add_n([tf.reduce_sum(each) for each in outputs.values() if each.dtype.is_floating])
        return total + tf.add_n([tf.reduce_sum(each) for each in tape.gradient(total, values)])

    def losses(self) -> Any:
        """Compute targets and losses, and their gradient with respect to the network's outputs."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(self.answers)
            total = tf.add_n(list(self.detector.losses(self.answers, self.batch).values()))
        gradients = tape.gradient(total, self.answers).values()
        return total + tf.add_n([tf.reduce_sum(each) for each in gradients if each is not None])

    def optimizer_alone(self) -> None:
        from detloom.trainer_module.training.gradients import clip_gradients, gradient_norms
        from detloom.trainer_module.training.optimizers import apply_update

        norms = gradient_norms(self.gradients)
        clipped = clip_gradients(self.config.train.gradient_clipping, self.gradients, norms)
        apply_update(self.optimizer, clipped, self.variables, self.optimizer.learning_rate)

    def call(self, part: str) -> None:
        if part == "input":
            next(self.iterator)
            return
        if part == "full":
            self.full()
            return
        result = self.functions["optimizer_alone" if part == "optimizer" else part]()
        if result is not None:
            result.numpy()


def serve(paths: list[str]) -> None:
    """Answer timing requests in a child process, as the peer's script does."""
    parts = OurParts(*paths)
    for part in PARTS:
        parts.call(part)
    answer_requests(parts.call, num_variables=len(parts.variables))


def measure(process: TimedProcess, part: str) -> tuple[list[float], float]:
    """Return the seconds of each call, and the share of the machine that others used meanwhile."""
    disturbance = Disturbance(lambda: process_seconds(process.pid))
    seconds = process.seconds(part, CALLS[part])
    return seconds, disturbance.share()


def typical_seconds(part: str, seconds: list[float]) -> float:
    """Return the median; for the input, the mean of the later calls, because the first ones come from its buffers."""
    return statistics.mean(seconds[len(seconds) // 2 :]) if part == "input" else statistics.median(seconds)


def measure_model(preset_name: str, batch_size: int, num_rounds: int) -> dict[str, Any]:
    """Return milliseconds by system and part (medians of the rounds' medians), each round's, and the disturbance."""
    with tempfile.TemporaryDirectory() as name:
        paths = write_inputs(Path(name), preset_name, batch_size)
        processes = {"ours": TimedProcess([sys.executable, __file__, "--child", *paths])}
        if has_peer():
            processes["odapi"] = TimedProcess([str(PEER_PYTHON), str(PEER_SCRIPT), *paths])
        rounds: dict[str, dict[str, list[float]]] = {system: {part: [] for part in PARTS} for system in processes}
        others = 0.0
        for number in range(num_rounds):
            for part in PARTS:
                for system, process in processes.items():
                    seconds, disturbance = measure(process, part)
                    rounds[system][part].append(1000 * typical_seconds(part, seconds))
                    others = max(others, disturbance)
            print(f"  {preset_name}: round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        result: dict[str, Any] = {"batch_size": batch_size, "others": others, "rounds": rounds}
        for system, process in processes.items():
            process.close()
            table = {part: statistics.median(values) for part, values in rounds[system].items()}
            pairs = zip(rounds[system]["full"], rounds[system]["network"], strict=True)
            result[system] = {
                **table,
                "full_to_network": statistics.median(full / network for full, network in pairs),
                "start_up_seconds": process.start_up_seconds,
                "num_variables": process.ready["num_variables"],
            }
        if "odapi" in result:
            pairs = zip(rounds["odapi"]["full"], rounds["ours"]["full"], strict=True)
            result["odapi_to_ours"] = statistics.median(theirs / ours for theirs, ours in pairs)
        return result


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'ms':36}{'full':>8}{'network':>9}{'losses':>8}{'optimizer':>11}{'input':>8}  full/network  start-up s")
    for name, result in results.items():
        for system in ("ours", "odapi"):
            if system not in result:
                continue
            row = result[system]
            print(
                f"{f'{name}, {system}':36}{row['full']:8.0f}{row['network']:9.0f}{row['losses']:8.1f}"
                f"{row['optimizer']:11.1f}{row['input']:8.1f}{row['full_to_network']:14.2f}{row['start_up_seconds']:12.0f}"
            )
        others = f"others used up to {result['others']:.0%} of the machine"
        if "odapi" in result:
            print(f"  odapi's full step to ours: {result['odapi_to_ours']:.2f}; {others}")
        else:
            print(f"  odapi: {NO_PEER}; {others}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("CONFIG", "RECORDS", "LABEL_MAP"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child)
        return
    results = {MODELS[name][0]: measure_model(*MODELS[name], args.rounds) for name in args.models}
    print_table(results)
    if args.output:
        settings = {"rounds": args.rounds, "calls": CALLS, **describe_machine()}
        args.output.write_text(json.dumps({"settings": settings, "models": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
