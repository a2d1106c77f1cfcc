"""Claim: from the same weights, on the same data and with the same settings, the training loss follows the Object
Detection API's own training loop.

Takes run files, such as those in `digits/`; both systems train the number of steps on its records in the same order,
without augmentation, from the weights that the peer's loop has drawn. Two-stage detectors draw anchors and proposals at
random in each step, so their losses are not equal in each step. Prints the means of parts of the run, and writes
NAME.svg with both curves and NAME.json with all losses of each step.

    DIGITS_DIR=... python benchmarks/loss_curves.py benchmarks/digits/*.yaml [--steps 200] [--output DIR]
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's `detloom`

from tools.comparable_settings import split_extension, with_length  # noqa: E402
from tools.disturbance import run_child  # noqa: E402
from tools.surroundings import NO_PEER, PEER_PYTHON, has_peer  # noqa: E402

from detloom.components.pages.charts import Line, format_svg  # noqa: E402
from detloom.schemas.contracts.label_map import read_label_map  # noqa: E402
from detloom.schemas.model.config import TrainEvalConfig  # noqa: E402
from detloom.schemas.odapi.pipeline_config import format_pipeline_config  # noqa: E402
from detloom.schemas.reading.typed_dict import to_canonical_json  # noqa: E402
from detloom.schemas.run_file.read_run_file import RunFile, read_run_file  # noqa: E402

PEER_SCRIPT = ROOT / "benchmarks/peers/odapi_train.py"
OUR_SCRIPT = ROOT / "benchmarks/tools/our_train.py"
NUM_PARTS = 5
TOTALS = {"detloom": "loss", "Object Detection API": "Loss/total_loss"}  # name of the total loss by system
Losses = dict[str, dict[int, float]]  # by name and step


def write_records(run: RunFile, output: Path) -> None:
    """Write the records of the training and eval splits, one file each: systems read several in another order."""
    flags = [f"--{name}" for name in ("masks", "keypoints") if getattr(run.data, name)]
    ingest = [sys.executable, "-m", "detloom.pipelines.cli", "ingest", f"--format={run.data.format}", *flags]
    splits = f"--splits=train={run.data.splits.train},eval={run.data.splits.eval}"
    run_child([*ingest, f"--input={run.data.path}", f"--output={output}", splits], output.with_suffix(".log"))
    for folder in output.glob("Split-*"):
        shards = sorted(folder.iterdir())
        with (folder / "all.tfrecord").open("wb") as file:
            for shard in shards:
                file.write(shard.read_bytes())
                shard.unlink()


def configuration(run: RunFile, num_steps: int, num_classes: int, records: Path) -> TrainEvalConfig:
    """Return settings that both systems read in the same way."""
    config = run.config
    train = replace(
        config.train,
        num_steps=num_steps,
        optimizer=with_length(config.train.optimizer, num_steps),
        augmentations=(),
        moving_average=None,
        early_stopping=None,
        fine_tune_checkpoint="",
        fine_tune_checkpoint_type="full",
        checkpoint_every_n=1000,
        max_to_keep=3,
        seed=0,
    )
    reader = replace(
        config.train_input,
        shuffle=False,
        label_map_path=str(records / "label_map.pbtxt"),
        input_path=(f"{records}/Split-train/*tfrecord*",),
    )
    evaluation = replace(config.eval, evaluate_every=num_steps)
    model = replace(config.model, num_classes=num_classes)
    return replace(config, model=model, train=train, train_input=reader, eval_input=reader, eval=evaluation)


def write_peer_config(config: TrainEvalConfig, path: Path) -> None:
    text, unsaid = split_extension(format_pipeline_config(config))
    for line in unsaid:
        print(f"  not in the peer's configuration: {line}")
    path.write_text(name_keypoints(text, config, path.with_name("keypoints.pbtxt")), encoding="utf-8")


def run_peer(what: str, config_path: Path, *arguments: object) -> None:
    command = [PEER_PYTHON, PEER_SCRIPT, what, config_path, *arguments]
    run_child([str(each) for each in command], config_path.with_name(f"{what}.log"))


def name_keypoints(text: str, config: TrainEvalConfig, path: Path) -> str:
    """Write the class and the order of keypoints in the data to a label map, and name it where the peer reads it."""
    task = getattr(config.model, "keypoint_estimation_task", None)
    if task is None:
        return text
    points = "".join(
        f'  keypoints {{ id: {number} label: "{point.name}" }}\n'
        for number, point in enumerate(task.keypoint_label_to_std)
    )
    label_map = read_label_map(Path(config.train_input.label_map_path))
    (class_id,) = (each for each, name in label_map.names_by_id if name == task.keypoint_class_name)
    item = f'item {{\n  name: "{task.keypoint_class_name}"\n  id: {class_id}\n{points}}}\n'
    path.write_text(item, encoding="utf-8")
    text = text.replace(
        "train_input_reader {\n", f"train_input_reader {{\n  num_keypoints: {len(task.keypoint_label_to_std)}\n", 1
    )
    return text.replace("center_net {\n", f'center_net {{\n    keypoint_label_map_path: "{path}"\n', 1)


def train_ours(config: TrainEvalConfig, records: Path, folder: Path) -> None:
    config = replace(config, train=replace(config.train, steps_per_call=1))
    (folder / "config.json").write_text(to_canonical_json(config), encoding="utf-8")
    arguments = ["train", str(folder / "config.json"), str(records), str(folder / "ours")]
    run_child([sys.executable, str(OUR_SCRIPT), *arguments], folder / "ours.log")


def read_our_losses(folder: Path) -> Losses:
    losses: Losses = {}
    for line in map(json.loads, (folder / "ours/train_log.jsonl").read_text().splitlines()):
        if line["kind"] == "train":
            for name in line:
                if name.endswith("loss"):
                    losses.setdefault(name, {})[line["step"]] = line[name]
    return losses


def read_peer_losses(folder: Path) -> Losses:
    """Return the losses by the peer's names; a step has the number that it has afterwards, as ours do."""
    import tensorflow as tf

    losses: Losses = {}
    for path in (folder / "peer/train").glob("*tfevents*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("Loss/"):
                    losses.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return losses


def compare(run_file: Path, num_steps: int, output: Path) -> dict[str, dict[int, float]]:
    """Train both, write losses and curves, and return the total losses by system and step."""
    run = read_run_file(run_file)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = folder / "records"
        write_records(run, records)
        num_classes = read_label_map(records / "label_map.pbtxt").num_classes
        config = configuration(run, num_steps, num_classes, records)
        weights, config_path = folder / "weights/ckpt-1", folder / "pipeline.config"
        config = replace(config, train=replace(config.train, fine_tune_checkpoint=str(weights)))
        write_peer_config(config, config_path)
        run_peer("draw", config_path, weights.parent, config.train.seed)
        run_peer("train", config_path, folder / "peer", num_steps, num_steps, config.train.seed, 1)
        train_ours(config, records, folder)
        losses = {"detloom": read_our_losses(folder), "Object Detection API": read_peer_losses(folder)}
    (output / f"{run.name}.json").write_text(json.dumps(losses, indent=1) + "\n", encoding="utf-8")
    totals = {system: losses[system][name] for system, name in TOTALS.items()}
    lines = [Line(name=system, points=sorted(of_steps.items())) for system, of_steps in totals.items()]
    chart = format_svg(f"{run.name}: training loss from the same weights", "step", "loss", lines)
    (output / f"{run.name}.svg").write_text(chart, encoding="utf-8")
    return totals


def means(of_steps: Mapping[int, float], num_steps: int) -> Sequence[float]:
    """Return the mean loss of each part of the run."""
    ends = [num_steps * part // NUM_PARTS for part in range(NUM_PARTS + 1)]
    return [
        statistics.mean(loss for step, loss in of_steps.items() if begin < step <= end)
        for begin, end in itertools.pairwise(ends)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_files", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("loss_curves"))
    args = parser.parse_args()
    if args.steps < NUM_PARTS:
        parser.error(f"--steps: got {args.steps}, allowed: at least {NUM_PARTS}, the number of means")
    if not has_peer():
        print(f"odapi: {NO_PEER}")
        return
    os.environ["PYTHONPATH"] = str(ROOT)  # for child processes
    args.output.mkdir(parents=True, exist_ok=True)
    for run_file in args.run_files:
        print(run_file, flush=True)
        for system, of_steps in compare(run_file, args.steps, args.output).items():
            shown = " ".join(f"{mean:8.3f}" for mean in means(of_steps, args.steps))
            print(f"  {system:22} first {of_steps[min(of_steps)]:8.3f}; means {shown}", flush=True)


if __name__ == "__main__":
    main()
