"""Claim: with one worker, ingestion is at least as fast as the Object Detection API's conversion, with two workers 1.7
times as fast as with one; it starts in less than 2 s, and its memory does not grow with the data.

BCCD (Pascal VOC) is replicated by hard links. Both programs read the same files in turn, each in its own process: ours
(`ingest`, everything checked) and, if its environment is built (`make peer-odapi`), the Object Detection API. Start-up
is reported separately, as the time of the same command on a few records. CPU time, imports
excluded likewise, is less disturbed by other programs than the rate. Prints a table and writes JSON.

    python benchmarks/ingestion.py [--records 20000] [--runs 3] [--data .../bccd] [--output ingestion.json]
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.measured_child import measure
from tools.surroundings import NO_PEER, PEER_PYTHON, describe_machine, find_bccd, has_peer

NUM_START_UP_RECORDS = 16
PEER_SCRIPT = Path(__file__).parent / "peers/odapi_pascal.py"


def replicate(data: Path, folder: Path, num_records: int) -> float:
    """Replicate by hard links to the images and renamed annotations; return MB of images."""
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    stems = sorted(path.stem for path in (data / "Annotations").glob("*.xml"))
    texts = {stem: (data / f"Annotations/{stem}.xml").read_text() for stem in stems}
    names, num_bytes = [], 0
    for number in range(num_records):
        stem = stems[number % len(stems)]
        name = f"{stem}_{number // len(stems):05d}"
        image = data / f"JPEGImages/{stem}.jpg"
        target = folder / f"JPEGImages/{name}.jpg"
        try:
            os.link(image, target)
        except OSError:
            shutil.copyfile(image, target)
        text = texts[stem].replace(f"<filename>{stem}.jpg", f"<filename>{name}.jpg")
        assert text != texts[stem], stem
        (folder / f"Annotations/{name}.xml").write_text(text)
        names.append(name)
        num_bytes += image.stat().st_size
    (folder / "ImageSets/Main/train.txt").write_text("\n".join(names))
    return num_bytes / 1e6


def run_ours(folder: Path, output: Path, num_workers: int) -> dict[str, float]:
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.pipelines.local.beam_pipelines import pipeline_maker

    params = ExampleGenParams(format="voc", splits={"train": "train"})
    make_pipeline = pipeline_maker(num_workers, ())
    started = time.monotonic()
    report = ingest(folder, params, IngestFolders(str(output), f"{output}/rejects"), make_pipeline)
    return {"seconds": time.monotonic() - started, "num_records": report["num_written"]}


def run_command(command: list[str]) -> dict[str, float]:
    """Return what the command used (see `Use`), and the JSON of its last line, whose seconds leave out the imports."""
    use = asdict(measure(command))
    return {**use, **use.pop("result")}


def commands(folder: Path, work: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield name and command of each measurement."""
    this = [sys.executable, __file__]
    output = str(work / "out")
    yield "ours, 1 worker", [*this, "--child", "1", str(folder), output]
    yield "ours, 2 workers", [*this, "--child", "2", str(folder), output]
    if has_peer():
        yield "odapi", [str(PEER_PYTHON), str(PEER_SCRIPT), str(folder), "train", output]


def clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_all(work: Path, num_runs: int) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Return results by round, name and size. Start-up is measured next to each run, under the same load."""
    rounds = []
    for number in range(num_runs):
        results: dict[str, dict[str, dict[str, float]]] = {}
        for size in ("start_up", "large") if number else ("start_up", "large", "small"):
            for name, command in commands(work / size, work):
                clear(work / "out")
                result = results.setdefault(name, {})[size] = run_command(command)
                shown = f"{name}, {size}: {result['seconds']:.1f} s, others used {result['others']:.0%}"
                print(f"  run {number + 1}: {shown}", file=sys.stderr, flush=True)
        rounds.append(results)
    clear(work / "out")
    return rounds


def images_per_second(result: dict[str, dict[str, float]]) -> float:
    """Return the rate without start-up: additional records / additional seconds."""
    large, start_up = result["large"], result["start_up"]
    return (large["num_records"] - start_up["num_records"]) / (large["seconds"] - start_up["seconds"])


def cpu_seconds_per_image(result: dict[str, dict[str, float]]) -> float:
    """Return the additional CPU time of an additional record."""
    large, start_up = result["large"], result["start_up"]
    return (large["cpu_seconds"] - start_up["cpu_seconds"]) / (large["num_records"] - start_up["num_records"])


def summarize(rounds: list[dict[str, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name in rounds[0]:
        runs = [each[name] for each in rounds]
        rate = statistics.median(map(images_per_second, runs))
        table[name] = {
            "images_per_second": rate,
            "cpu_us_per_image": statistics.median(map(cpu_seconds_per_image, runs)) * 1e6,
            "start_up_seconds": statistics.median(run["start_up"]["seconds"] for run in runs),
            "peak_main_mb": max(run["large"]["peak_main_mb"] for run in runs),
            "peak_workers_mb": max(run["large"]["peak_workers_mb"] for run in runs),
            "peak_main_mb_small": runs[0]["small"]["peak_main_mb"],
            "peak_workers_mb_small": runs[0]["small"]["peak_workers_mb"],
            "others": max(part["others"] for run in runs for size, part in run.items() if size != "small"),
        }
    pairs = {
        "two_workers_to_one": ("ours, 2 workers", "ours, 1 worker"),
    }
    if "odapi" in table:
        pairs["one_worker_to_odapi"] = ("ours, 1 worker", "odapi")
    claims = {
        claim: sorted(images_per_second(each[one]) / images_per_second(each[other]) for each in rounds)
        for claim, (one, other) in pairs.items()
    }
    for claim, (one, other) in pairs.items():
        claims[f"{claim}_by_cpu_time"] = sorted(
            cpu_seconds_per_image(each[other]) / cpu_seconds_per_image(each[one]) for each in rounds
        )
    return {"table": table, "claims": claims, "rounds": rounds}


def print_table(summary: dict[str, Any], sizes: tuple[int, int]) -> None:
    head = "images/s  CPU us/image  start-up s  others  peak MB: main, workers"
    print(f"{'':17}{head} ({sizes[0]} | {sizes[1]})")
    for name, row in summary["table"].items():
        print(
            f"{name:17}{row['images_per_second']:8.0f}{row['cpu_us_per_image']:14.0f}"
            f"{row['start_up_seconds']:12.1f}{row['others']:8.0%}  "
            f"{row['peak_main_mb_small']:.0f}, {row['peak_workers_mb_small']:.0f} | "
            f"{row['peak_main_mb']:.0f}, {row['peak_workers_mb']:.0f}"
        )
    for name, values in summary["claims"].items():
        print(f"{name}: {statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})")
    if "odapi" not in summary["table"]:
        print(f"odapi: {NO_PEER}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--small", type=int, default=5_000, help="records of the smaller size, for memory")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for temporary data; hard links need the data's file system")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("WORKERS", "FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        num_workers, folder, output = args.child
        print(json.dumps(run_ours(Path(folder), Path(output), int(num_workers))))
        return
    data = find_bccd(args.data)
    with tempfile.TemporaryDirectory(dir=args.work) as name:
        work = Path(name)
        for size, count in (("start_up", NUM_START_UP_RECORDS), ("small", args.small), ("large", args.records)):
            megabytes = replicate(data, work / size, count)
            print(f"{count} records, {megabytes:.0f} MB of images", file=sys.stderr)
        summary = summarize(run_all(work, args.runs))
    summary["settings"] = {"records": args.records, "small": args.small, "runs": args.runs, **describe_machine()}
    print_table(summary, (args.small, args.records))
    if args.output:
        args.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
