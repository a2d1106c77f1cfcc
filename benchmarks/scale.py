"""Claim: the CPU time of each stage grows at most as n^1.05 with the number n of records, and its memory by less than
10 % from 10^5 to 10^6 records.

Stages: "list" (names, sizes and times of a data folder), "plan" (a COCO file to planned shards), "ingest" (the whole
ingestion), "validate" (DatasetValidator with its comparison of images), "evaluate" (generating, matching and measuring
of 100 detections for each image), "near-duplicates" (different hashes) and "one group" (hashes that are all
near-duplicates). The images are small, and links to few files. Each measurement is a process of its own; the exponent
is that of the line through the logarithms of CPU time, less that of a tiny run, from 10^4 records on. Prints a table,
writes JSON.

    python benchmarks/scale.py [--stages plan ingest] [--sizes 1000 10000 100000] [--workers 1] [--output DIR]
"""

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.made_data_sets import make_coco
from tools.made_detections import measure_detections
from tools.made_examples import search_near_duplicates, validate_made, write_examples
from tools.measured_child import measure, this_script
from tools.surroundings import describe_machine

TINY = 100  # records of the run whose CPU time is that of the start
SMALLEST_FITTED = 10_000  # below, constant terms dominate
SHORTEST_FITTED_SECONDS = 0.25  # beyond the start; below, CPU time is not exact
DETECTIONS_EACH, CLASSES = 100, 80
A_DAY = 1_000_000  # images, for the extrapolation


# --- stages: functions of this process, each with its input in a folder ----------------------------------------------


def list_folder(folder: Path, _: int) -> dict[str, Any]:
    from detloom.components.example_gen.data_folder import DataFolder

    entries = DataFolder(str(folder / "data")).walk()
    return {"num_records": sum(1 for entry in entries if entry.path.endswith(".jpg") and entry.size)}


def plan(folder: Path, _: int) -> dict[str, Any]:
    from tools.ingestion_stages import run_stages

    stages = run_stages(folder / "data", folder / "planned", "coco", plan_only=True)
    return {"num_records": stages["num_records"]}


def ingest(folder: Path, num_workers: int) -> dict[str, Any]:
    from detloom.components.example_gen.ingest import IngestFolders
    from detloom.components.example_gen.ingest import ingest as ingest_data
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.pipelines.local.beam_pipelines import pipeline_maker

    params = ExampleGenParams(format="coco", splits={"train": "instances_train.json"})
    out = IngestFolders(str(folder / "ingested"), str(folder / "ingested/rejects"))
    report = ingest_data(str(folder / "data"), params, out, pipeline_maker(num_workers, ()))
    return {"num_records": report["num_written"]}


def validate(folder: Path, _: int) -> dict[str, Any]:
    validate_made(folder / "examples", folder / "report")
    return {"num_records": _size_of(folder)}


def evaluate(folder: Path, _: int) -> dict[str, Any]:
    measure_detections(_size_of(folder), detections=DETECTIONS_EACH, classes=CLASSES)
    return {"num_records": _size_of(folder)}


def search_different(folder: Path, _: int) -> dict[str, Any]:
    search_near_duplicates("random", _size_of(folder))
    return {"num_records": _size_of(folder)}


def search_one_group(folder: Path, _: int) -> dict[str, Any]:
    search_near_duplicates("clustered", _size_of(folder))
    return {"num_records": _size_of(folder)}


def _size_of(folder: Path) -> int:
    return int((folder / "size").read_text())


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "list": list_folder,
    "plan": plan,
    "ingest": ingest,
    "validate": validate,
    "evaluate": evaluate,
    "near-duplicates": search_different,
    "one group": search_one_group,
}
NEEDS_DATA, NEEDS_EXAMPLES = {"list", "plan", "ingest"}, {"validate"}


# --- measurements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stage at one size."""

    stage: str
    num_records: int
    cpu_seconds: float
    seconds: float
    peak_mb: float
    temporary_mb: float
    others: float


def measure_stage(stage: str, folder: Path, size: int, num_workers: int) -> Row:
    temporary = folder / "temporary"
    temporary.mkdir()
    command = this_script("--child", stage, str(folder), "--workers", str(num_workers))
    use = measure(command, temporary)
    shutil.rmtree(temporary)
    assert use.result["num_records"] == size, (stage, size, use.result)
    row = Row(
        stage=stage,
        num_records=size,
        cpu_seconds=use.cpu_seconds,
        seconds=use.seconds,
        peak_mb=use.peak_main_mb + use.peak_workers_mb,
        temporary_mb=use.temporary_mb,
        others=use.others,
    )
    print(
        f"{stage:16}{size:9,}{row.cpu_seconds:10.1f}{row.seconds:10.1f}{row.peak_mb:9.0f}{row.temporary_mb:9.1f}"
        f"{row.others:8.0%}",
        flush=True,
    )
    return row


def measure_size(stages: Sequence[str], size: int, num_workers: int, work: Path) -> list[Row]:
    """Make the data of one size, and measure the stages with it."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        (folder / "size").write_text(str(size))
        if NEEDS_DATA.intersection(stages):
            make_coco(folder / "data", size)
        if NEEDS_EXAMPLES.intersection(stages):
            write_examples(folder / "examples", size)
        return [measure_stage(stage, folder, size, num_workers) for stage in STAGES if stage in stages]


def exponent(rows: Sequence[Row]) -> float:
    """Return the slope of log(CPU time - that of the tiny run) over log(records), by least squares.

    NaN for less than two points.
    """
    start = next(row.cpu_seconds for row in rows if row.num_records == TINY)
    points = [
        (math.log(row.num_records), math.log(row.cpu_seconds - start))
        for row in rows
        if row.num_records >= SMALLEST_FITTED and row.cpu_seconds - start >= SHORTEST_FITTED_SECONDS
    ]
    if len(points) < 2:
        return math.nan
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    summary = {}
    for stage in STAGES:
        its = sorted((row for row in rows if row.stage == stage), key=lambda row: row.num_records)
        if len(its) < 2 or its[-1].num_records <= SMALLEST_FITTED:
            continue
        last, before = its[-1], its[-2]
        slope = exponent(its)
        per_record = (last.cpu_seconds - its[0].cpu_seconds) / last.num_records
        summary[stage] = {
            "exponent": slope,
            "memory_growth": last.peak_mb / before.peak_mb - 1,
            "hours_a_day": per_record * A_DAY / 3600,
        }
        growth, hours = summary[stage]["memory_growth"], summary[stage]["hours_a_day"]
        print(f"{stage}: CPU time grows as n^{slope:.2f}, memory by {growth:.0%} for {last.num_records:,} records")
        print(f"    a million images a day: {hours:.2f} hours of a core (extrapolated)")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder for temporary data")
    parser.add_argument("--output", type=Path, help="folder for scale.json")
    parser.add_argument("--child", nargs=2, metavar=("STAGE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        stage, folder = args.child
        print(json.dumps(STAGES[stage](Path(folder), args.workers)))
        return
    print(f"{'stage':16}{'records':>9}{'CPU s':>10}{'seconds':>10}{'MB':>9}{'temp MB':>9}{'others':>8}")
    rows: list[Row] = []
    for size in sorted({TINY, *args.sizes}):
        rows += measure_size(args.stages, size, args.workers, args.work or Path(tempfile.gettempdir()))
    summary = summarize(rows)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        settings = {"workers": args.workers, **describe_machine()}
        content = {"settings": settings, "summary": summary, "rows": [asdict(row) for row in rows]}
        (args.output / "scale.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
