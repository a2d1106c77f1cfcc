"""Claim: on a GPU or a TPU, training and exported models give the results of a CPU, and their speed is known.

Writes one page, `results.md`, and `results.json`: parity with the CPU within bounds for the device's arithmetic, step
time without and with XLA against the roofline of the data sheet, scaling over 1, 2, 4, ... devices, input rate,
exported model, and a run that resumes after SIGTERM. The exit code is 1 if a section failed; the others are reported
all the same. `--small` runs all of it on two logical CPU devices with a tiny detector.

    python benchmarks/accelerator.py [--preset NAME ...] [--batch-size N] [--chip gpu-h100] [--out FOLDER] [--small]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.accelerator_page import OF_MACHINE, TITLES, format_page, has_failed

PRESETS = (
    "ssd_mobilenet_v2_fpnlite_320x320",
    "efficientdet_d0",
    "centernet_resnet50_v2_512x512",
    "faster_rcnn_resnet50_v1_fpn_640x640",
)
TINY = "tiny"  # name of the detector of --small
SECTION_SECONDS = 1800
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Child:
    """A process that runs sections for one preset; see `tools/device_sections.py`.

    Attributes:
        settings: those of `tools/device_session.py`, as JSON.
        folder: receives the results and the log.
    """

    command: tuple[str, ...]
    settings: str
    folder: Path

    def run(self, sections: Sequence[str], max_seconds: float = SECTION_SECONDS) -> Iterator[tuple[str, Any]]:
        """Yield each section's result; a section that ends its process fails, and a new process runs the rest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rest = list(sections)
        while rest:
            with (self.folder / "log.txt").open("ab") as log:
                arguments = [*self.command, self.settings, str(self.folder), *rest]
                process = subprocess.Popen(arguments, stdout=sys.stderr, stderr=log)
            try:
                cause = yield from self._results(process, rest, max_seconds)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            if rest:
                end = " ".join((self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").split())[-300:]
                yield rest.pop(0), {"status": "failed", "cause": f"{cause}: {end}"}

    def _results(
        self, process: subprocess.Popen[bytes], rest: list[str], max_seconds: float
    ) -> Iterator[tuple[str, Any]]:
        """Remove from `rest` what is yielded; return why the first of the others has no result."""
        started = time.monotonic()
        while rest:
            has_ended = process.poll() is not None  # before the look at the files
            file = self.folder / f"{rest[0]}.json"
            if file.is_file():
                yield rest.pop(0), json.loads(file.read_text(encoding="utf-8"))
                started = time.monotonic()
            elif has_ended:
                return f"the process ended with exit code {process.returncode}"
            elif time.monotonic() - started > max_seconds:
                return f"no result after {max_seconds:.0f} s"
            else:
                time.sleep(_POLL_SECONDS)
        return ""


def measure(args: argparse.Namespace, out: Path) -> dict[str, dict[str, Any]]:
    """Run the chosen sections for each preset; write the page after each, so that an interrupted run has one."""
    results: dict[str, dict[str, Any]] = {}

    def add(section: str, preset: str, result: Any) -> None:
        results.setdefault(section, {})[preset] = result
        print(f"  {TITLES[section]}: {result['status']} {result.get('cause', '')}", file=sys.stderr, flush=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.md").write_text(format_page(results), encoding="utf-8")
        text = json.dumps({"passed": not has_failed(results), "sections": results}, indent=1)
        (out / "results.json").write_text(text + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="detloom-accelerator-") as name:
        for number, preset in enumerate([TINY] if args.small else args.preset):
            print(f"{preset}:", file=sys.stderr, flush=True)
            settings = settings_of(args, preset, has_xla=not args.without_xla, tensor_float=True)
            child = Child((sys.executable, __file__, "--child"), settings, Path(name, preset))
            sections = [each for each in TITLES if each == "machine" or (each in args.sections and each != "resume")]
            for section, result in child.run(sections[number > 0 :]):
                add(section, "" if section in OF_MACHINE else preset, result)
            parity = results.get("parity", {}).get(preset, {})
            if any(row["arithmetic"] == "TensorFloat-32" for row in parity.get("rows", ())):
                settings = settings_of(args, preset, has_xla=False, tensor_float=False)
                child = Child(child.command, settings, Path(name, f"{preset}-float32"))
                for section, result in child.run(["parity"]):
                    add(section, preset, merge_parity(result, parity))
        if "resume" in args.sections:
            print("resume:", file=sys.stderr, flush=True)
            is_tpu = results["machine"][""].get("kind") == "TPU"
            add("resume", "", resume(Path(name), "tpu" if is_tpu else "one_device"))
    return results


def resume(folder: Path, strategy: str) -> dict[str, Any]:
    from tools.resumed_training import compare_resumed

    try:
        return compare_resumed(folder, strategy)
    except (RuntimeError, OSError, ValueError) as error:
        return {"status": "failed", "cause": str(error)}


def merge_parity(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of both; failed if one of them is."""
    causes = [each["cause"] for each in (one, other) if each["cause"]]
    return {
        "status": "failed" if has_failed({"parity": {"one": one, "other": other}}) else "passed",
        "cause": "; ".join(causes),
        "rows": [*one.get("rows", ()), *other.get("rows", ())],
    }


def settings_of(args: argparse.Namespace, preset: str, *, has_xla: bool, tensor_float: bool) -> str:
    """Return `tools/device_session.py`'s Settings as JSON."""
    return json.dumps(
        {
            "preset": preset,
            "batch_size": args.batch_size,
            "precision": args.precision,
            "chip": args.chip,
            "is_small": args.small,
            "has_xla": has_xla,
            "tensor_float": tensor_float,
            "seconds": 1.0 if args.small else 10.0,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=list(PRESETS), metavar="NAME", help="default: one a family")
    parser.add_argument("--batch-size", type=int, help="images on each device; default: an eighth of the preset's")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], help="default: the preset's")
    parser.add_argument("--chip", help="data sheet for the roofline, such as gpu-h100; default: by the device's name")
    parser.add_argument("--sections", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--without-xla", action="store_true", help="do not compile with XLA: on CPUs it takes minutes")
    parser.add_argument("--out", type=Path, default=Path("accelerator-results"), metavar="FOLDER")
    parser.add_argument("--small", action="store_true", help="two logical CPU devices and a tiny detector, for CI")
    args = parser.parse_args()
    check_names(parser, args)
    if args.small:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    results = measure(args, args.out)
    print((args.out / "results.md").read_text(encoding="utf-8"))
    sys.exit(1 if has_failed(results) else 0)


def check_names(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with an error for a chip or a preset that does not exist, or for one that generated images cannot train."""
    from detloom.schemas.contracts.ground_truth import OPTIONAL_COLUMNS
    from detloom.schemas.errors import InputError
    from detloom.schemas.presets.presets import find_preset
    from detloom.trainer_module.accelerators.chips import CHIPS
    from detloom.trainer_module.detectors.families import family_of

    if args.chip is not None and args.chip not in CHIPS:
        parser.error(f"--chip: got {args.chip!r}, allowed: {', '.join(CHIPS)}")
    try:
        for name in args.preset:
            if set(OPTIONAL_COLUMNS) & set(family_of(find_preset(name).config.model).ground_truth_columns):
                parser.error(f"--preset: got {name}, allowed: one without masks and keypoints, which made images lack")
    except InputError as error:
        parser.error(f"--preset: {error}")


def run_child(settings: str, folder: str, *sections: str) -> None:
    from tools.device_sections import run_sections
    from tools.device_session import Settings

    run_sections(Settings(**json.loads(settings)), sections, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
    else:
        main()
