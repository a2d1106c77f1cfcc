"""Claim: from a bucket that takes 20 ms longer for each request, two workers ingest at least 100 images a second, with
one request for each image and each label file, and few others.

BCCD (Pascal VOC) is replicated under other names in the server of the tests, which runs in a process of its own and
speaks Cloud Storage's JSON API. Prints a table; the start-up of the command, with the format's detection and the
listing, is part of the time.

    python benchmarks/bucket_ingestion.py [--records 2000] [--latency_ms 20] [--workers 1 2] [--data .../bccd]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.surroundings import describe_machine, find_bccd

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests/components/fakes"))

INGEST = """
import sys, time
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams
started = time.monotonic()
options = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", f"--direct_num_workers={sys.argv[2]}"]
params = ExampleGenParams(format="voc", splits={"train": "train"})
folders = IngestFolders(sys.argv[1], f"{sys.argv[1]}/rejects")
report = ingest("gs://bucket/data", params, folders, lambda: Pipeline(options=PipelineOptions(options)))
print(report["num_written"], time.monotonic() - started)
"""


def serve(data: Path, num_records: int, latency_seconds: float) -> None:
    """Serve the replicated data, and print the address, then the number of requests whenever a line is read."""
    from google_storage_server import GoogleStorageServer

    server = GoogleStorageServer()
    stems = sorted(path.stem for path in (data / "Annotations").glob("*.xml"))
    names = [f"{stems[number % len(stems)]}_{number // len(stems):05d}" for number in range(num_records)]
    for name in names:
        stem = name[: -len("_00000")]
        server.bucket.put(f"data/JPEGImages/{name}.jpg", (data / f"JPEGImages/{stem}.jpg").read_bytes(), {})
        text = (data / f"Annotations/{stem}.xml").read_text()
        text = text.replace(f"<filename>{stem}.jpg", f"<filename>{name}.jpg")
        server.bucket.put(f"data/Annotations/{name}.xml", text.encode(), {})
    server.bucket.put("data/ImageSets/Main/train.txt", "\n".join(names).encode(), {})
    server.bucket.latency_seconds = latency_seconds
    with server.running():
        print(server.url, flush=True)
        for _ in sys.stdin:
            downloads = sum("alt=media" in each for each in server.bucket.requests)
            print(len(server.bucket.requests), downloads, flush=True)
            server.bucket.requests.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--latency_ms", type=float, default=20.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data = find_bccd(options.data)
    if options.serve:
        serve(options.data, options.records, options.latency_ms / 1e3)
        return
    print(describe_machine())
    command = [sys.executable, __file__, "--serve", "--records", str(options.records), "--data", str(options.data)]
    command += ["--latency_ms", str(options.latency_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": server.stdout.readline().strip(), "NO_PROXY": "127.0.0.1"}
        print("workers  images/s  requests per image (downloads)  CPU ms per image")
        for num_workers in options.workers:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with tempfile.TemporaryDirectory() as out:
                ingested = subprocess.run(
                    [sys.executable, "-c", INGEST, f"{out}/examples", str(num_workers)],
                    env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
                )  # fmt: skip
            num_written, seconds = map(float, ingested.stdout.split())
            assert num_written == options.records, ingested.stderr
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print("", file=server.stdin, flush=True)
            num_requests, num_downloads = map(int, server.stdout.readline().split())
            print(
                f"{num_workers:7} {num_written / seconds:9.0f}  {num_requests / num_written:.3f} "
                f"({num_downloads / num_written:.3f})                 {1e3 * cpu_seconds / num_written:15.1f}"
            )
        server.stdin.close()


if __name__ == "__main__":
    main()
