"""Claim: a full training step takes at most 1.06 times its own forward and backward pass, and less than the Object
Detection API's.

SSD MobileNetV2 FPNLite 320 at batch 8 and EfficientDet-D0 512 at batch 2: full step, network forward and backward,
targets and losses, optimizer, input. Both systems read the same records and settings, each in a process of its own,
and take turns part by part, so that a noisy machine slows both. Prints a table, writes JSON.

    python benchmarks/train_step.py [--rounds 5] [--models fpnlite d0] [--output train_step.json]
"""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from peers.timed_process import TimedProcess, answer_requests

PEER_SCRIPT = Path(__file__).parent / "peers/odapi_train_step.py"
PEER_ENV = Path(os.environ.get("ODAPI_ENV", Path.home() / ".cache/detloom/peers/odapi"))
MODELS = {"fpnlite": ("ssd_mobilenet_v2_fpnlite_320x320", 8), "d0": ("efficientdet_d0", 2)}
PARTS = ("full", "network", "losses", "optimizer", "input")
CALLS = {"full": 3, "network": 3, "losses": 10, "optimizer": 10, "input": 16}  # a round
NUM_PICTURES, BOXES_EACH, NUM_CLASSES = 32, 5, 90


def write_inputs(folder: Path, preset_name: str, batch_size: int) -> list[str]:
    """Pipeline configuration, records and label map, in the format of both; returns their paths.

    Pictures are 640x480 JPEG; the one augmentation is the flip, which both have.
    """
    from detloom.schemas.augmentation_config import RandomHorizontalFlip
    from detloom.schemas.label_map import LabelMap, format_label_map
    from detloom.schemas.pipeline_config import format_pipeline_config
    from detloom.schemas.presets import find_preset

    config = find_preset(preset_name).config
    train = replace(config.train, batch_size=batch_size, augmentations=(RandomHorizontalFlip(),))
    config = replace(config, train=train, model=replace(config.model, num_classes=NUM_CLASSES))
    paths = [folder / name for name in ("pipeline.config", "train.record", "label_map.pbtxt")]
    paths[0].write_text(format_pipeline_config(config), encoding="utf-8")
    write_records(paths[1])
    names = (f"class {number}" for number in range(NUM_CLASSES))
    paths[2].write_text(format_label_map(LabelMap.from_names(names)), encoding="utf-8")
    return [str(path) for path in paths]


def write_records(path: Path) -> None:
    import tensorflow as tf
    from PIL import Image

    from detloom.schemas import example_keys as keys

    random = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(NUM_PICTURES):
            small = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
            buffer = io.BytesIO()
            small.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, format="JPEG", quality=90)
            tops_lefts, sizes = random.uniform(0, 0.6, (BOXES_EACH, 2)), random.uniform(0.05, 0.4, (BOXES_EACH, 2))
            example = tf.train.Example()
            feature = example.features.feature
            feature[keys.IMAGE_ENCODED].bytes_list.value.append(buffer.getvalue())
            feature[keys.IMAGE_FORMAT].bytes_list.value.append(b"jpeg")
            feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(str(number).encode())
            feature[keys.IMAGE_HEIGHT].int64_list.value.append(480)
            feature[keys.IMAGE_WIDTH].int64_list.value.append(640)
            for key, values in zip(keys.BOX_KEYS_YXYX, np.hstack([tops_lefts, tops_lefts + sizes]).T, strict=True):
                feature[key].float_list.value.extend(values)
            feature[keys.CLASS_ID].int64_list.value.extend(random.integers(1, NUM_CLASSES + 1, BOXES_EACH))
            writer.write(example.SerializeToString())


class OurParts:
    """The same parts as the peer's script has."""

    def __init__(self, config_path: str, records: str, label_map_path: str) -> None:
        import tensorflow as tf

        from detloom.schemas.label_map import read_label_map
        from detloom.schemas.pipeline_config import read_pipeline_config
        from detloom.trainer_module.checkpoints.restore import find_trained
        from detloom.trainer_module.detector import build_detector
        from detloom.trainer_module.input_pipeline import build_train_dataset
        from detloom.trainer_module.optimizers import build_optimizer

        config, label_map = read_pipeline_config(Path(config_path)), read_label_map(Path(label_map_path))
        self.config = replace(config, train_input=replace(config.train_input, shuffle=False))
        self.detector = build_detector(config.model, label_map)
        self.variables = find_trained(config.train, self.detector).variables
        self.optimizer = build_optimizer(config.train.optimizer)
        self.optimizer.build(self.variables)
        dataset = build_train_dataset(self.config, label_map, [records], batch_size=config.train.batch_size)
        self.iterator = iter(dataset)
        self.batch = next(self.iterator)
        self.answers = self.detector.network(self.batch["image"], training=True)
        self.gradients = [tf.zeros_like(each) for each in self.variables]
        self.functions = {
            name: tf.function(getattr(self, name)) for name in ("full", "network", "losses", "optimizer_alone")
        }

    def full(self) -> Any:
        """What the training loop does in a step (`train_loop.py`)."""
        import tensorflow as tf

        values = [variable.value for variable in self.variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            losses = list(self.detector.losses(self.batch, training=True).values())
            total = tf.add_n([*losses, *self.detector.network.losses])
        self._apply(tape.gradient(total, values))
        return total

    def network(self) -> Any:
        import tensorflow as tf

        values = [variable.value for variable in self.variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            outputs = self.detector.network(self.batch["image"], training=True)
            total = tf.add_n([tf.reduce_sum(each) for each in outputs.values()])
        return total + tf.add_n([tf.reduce_sum(each) for each in tape.gradient(total, values)])

    def losses(self) -> Any:
        """Targets and losses, and their gradient to the network's answers."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(self.answers)
            total = tf.add_n(list(self.detector.losses_of_outputs(self.answers, self.batch).values()))
        return total + tf.add_n([tf.reduce_sum(each) for each in tape.gradient(total, self.answers).values()])

    def optimizer_alone(self) -> None:
        self._apply(self.gradients)

    def _apply(self, gradients: Any) -> None:
        from detloom.trainer_module.gradients import clip_gradients, gradient_norms

        clipped = clip_gradients(self.config.train.gradient_clipping, gradients, gradient_norms(gradients))
        self.optimizer.apply_gradients(zip(clipped, self.variables, strict=True))

    def call(self, part: str) -> None:
        if part == "input":
            next(self.iterator)
            return
        result = self.functions["optimizer_alone" if part == "optimizer" else part]()
        if result is not None:
            result.numpy()


def serve(paths: list[str]) -> None:
    """In a process of its own: as the peer's script."""
    parts = OurParts(*paths)
    for part in PARTS:
        parts.call(part)
    answer_requests(parts.call, num_variables=len(parts.variables))


def measure(process: TimedProcess, part: str) -> tuple[list[float], float]:
    """Seconds of each call, and the share of the machine that others used meanwhile."""
    own = psutil.Process(process.pid)
    busy, mine, started = _busy_seconds(psutil.cpu_times()), _busy_seconds(own.cpu_times()), time.monotonic()
    seconds = process.seconds(part, CALLS[part])
    passed = (time.monotonic() - started) * (os.cpu_count() or 1)
    others = _busy_seconds(psutil.cpu_times()) - busy - (_busy_seconds(own.cpu_times()) - mine)
    return seconds, max(0.0, others / passed)


def typical_seconds(part: str, seconds: list[float]) -> float:
    """The median; of the input the mean of the later calls, since the first ones are answered from its buffers."""
    return statistics.mean(seconds[len(seconds) // 2 :]) if part == "input" else statistics.median(seconds)


def _busy_seconds(times: Any) -> float:
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def measure_model(preset_name: str, batch_size: int, num_rounds: int) -> dict[str, Any]:
    """By system and part: milliseconds (medians of the rounds' medians), each round's, and the largest disturbance."""
    with tempfile.TemporaryDirectory() as name:
        paths = write_inputs(Path(name), preset_name, batch_size)
        processes = {"ours": TimedProcess([sys.executable, __file__, "--child", *paths])}
        if (PEER_ENV / "complete").is_file():
            processes["odapi"] = TimedProcess([str(PEER_ENV / "bin/python"), str(PEER_SCRIPT), *paths])
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
            print(f"  odapi: skipped, {PEER_ENV} is not built (make peer-odapi); {others}")


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
        machine = platform.processor() or platform.machine()
        settings = {"rounds": args.rounds, "calls": CALLS, "cores": os.cpu_count(), "machine": machine}
        args.output.write_text(json.dumps({"settings": settings, "models": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
