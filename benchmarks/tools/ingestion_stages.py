"""Run the steps of an ingestion in one process, without Beam, and measure each of them.

    python ingestion_stages.py FOLDER OUTPUT FORMAT [--plan-only]

Prints one line of JSON: seconds of CPU time by step, peak resident memory in MB after each step, bytes in the staging
folder, and the number of records.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detloom.components.example_gen.ingest import IngestFolders, build_job
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.plan import plan, read_plan
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations
from detloom.components.example_gen.sources.source_record import FormatEvidence
from detloom.components.example_gen.write_shard import write_shard


def run_stages(folder: Path, output: Path, data_format: str, *, plan_only: bool) -> dict[str, Any]:
    """Ingest all images of `folder` into one split below `output`, which must not exist; nothing is published."""
    params = ExampleGenParams(format=data_format, splits={"train": ""})
    out = IngestFolders(str(output), str(output / "rejects"))
    job = build_job(str(folder), params, out, data_format, FormatEvidence("", {}), ("",))
    job.staging.make_folder()
    seconds: dict[str, float] = {}
    peak_mb: dict[str, float] = {}

    def measure(name: str, step: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = step()
        seconds[name] = time.process_time() - started
        peak_mb[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return result

    num_chunks, _ = measure("list", lambda: list_chunks(job))
    measure("read", lambda: [read_annotations(index, job) for index in range(num_chunks)])
    shards = measure("plan", lambda: plan(num_chunks, job))
    planned = read_plan(job)
    assert not planned.error, planned.error
    if not plan_only:
        measure("write", lambda: [write_shard(shard, job) for shard in shards])
    files = [path.stat().st_size for path in (output / ".incomplete").rglob("*") if path.is_file()]
    return {
        "num_records": planned.num_planned,
        "num_chunks": num_chunks,
        "num_shards": len(shards),
        "cpu_seconds": seconds,
        "peak_mb": peak_mb,
        "staging_files": len(files),
        "staging_bytes": sum(files),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("data_format")
    parser.add_argument("--plan-only", action="store_true")
    args = parser.parse_args()
    print(json.dumps(run_stages(args.folder, args.output, args.data_format, plan_only=args.plan_only)))


if __name__ == "__main__":
    main()
