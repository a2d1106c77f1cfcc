"""Claim: COCO metrics of 5,000 images are computed at least 10 times faster than by pycocotools, with equal results.

Synthetic ground truth and detections, 100 per image in 80 classes. Each measurement runs in a process of its own.
Prints a table, writes JSON.

    python benchmarks/evaluation.py [--rounds 3] [--images 5000] [--output evaluation.json]
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.disturbance import run_child
from tools.made_detections import Size, make_detections, make_split
from tools.surroundings import describe_machine

BACKENDS = ("pycocotools", "detloom")
WARM_UP_IMAGES = 4  # the first call imports


def measure(backend: str, size: Size) -> dict[str, Any]:
    """Compute the metrics with a backend; return time, peak memory and the metrics."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from pycocotools_reference import reference_metrics

    from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics

    compute = reference_metrics if backend == "pycocotools" else compute_coco_metrics
    for images in (WARM_UP_IMAGES, size.images):
        split = make_split(replace(size, images=images))
        found = make_detections(split, size, 0)
        started = time.perf_counter()
        metrics = compute(split.ground_truth, found, split.label_map)
        seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"seconds": seconds, "peak_mb": peak_mb, "metrics": metrics.to_dict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="pycocotools, which takes minutes, runs once")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("BACKEND", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        backend, file = args.child
        size = Size(images=args.images, detections=100, classes=80)
        Path(file).write_text(json.dumps(measure(backend, size)), encoding="utf-8")
        return
    runs: dict[str, list[dict[str, Any]]] = {backend: [] for backend in BACKENDS}
    with tempfile.TemporaryDirectory() as name:
        file, log = Path(name, "result.json"), Path(name, "log.txt")
        for number in range(args.rounds):
            for backend in BACKENDS[number > 0 :]:
                child = run_child([sys.executable, *sys.argv, "--child", backend, str(file)], log)
                runs[backend].append({**json.loads(file.read_text(encoding="utf-8")), "others": child.others})
    medians = {
        backend: {key: statistics.median(run[key] for run in rounds) for key in ("seconds", "peak_mb", "others")}
        for backend, rounds in runs.items()
    }
    print(f"{'backend':14}{'seconds':>10}{'peak MB':>10}{'others':>8}")
    for backend, median in medians.items():
        print(f"{backend:14}{median['seconds']:10.2f}{median['peak_mb']:10,.0f}{median['others']:8.0%}")
    is_equal = all(run["metrics"] == runs["pycocotools"][0]["metrics"] for run in runs["detloom"])
    ratio = medians["pycocotools"]["seconds"] / medians["detloom"]["seconds"]
    print(f"{ratio:.1f} times faster than pycocotools; the metrics {'are equal' if is_equal else 'DIFFER'}")
    if args.output:
        result = {**describe_machine(), "images": args.images, "ratio": ratio, "is_equal": is_equal, "runs": runs}
        args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
