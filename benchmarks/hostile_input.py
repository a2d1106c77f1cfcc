"""Claim: no file of 1 MB that is made to be slow takes a command over 10 s or ends it with a traceback.

The files are the worst cases that are known for each parser (hostile_input.yaml). Prints a table, writes JSON:
    python benchmarks/hostile_input.py [WORD...] [--output hostile_input.json]
"""

import argparse
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml
from click.testing import CliRunner
from PIL import Image
from tools.made_records import serialize, write_records

from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError

LIMIT_SECONDS, NUM_BYTES, RECORDS = 10.0, 1_000_000, "examples/Split-eval/data_tfrecord-00000-of-00001"
LABEL_MAP = {"examples/label_map.pbtxt": b'item {id: 1 name: "red"} item {id: 2 name: "green"}'}
INGEST = "ingest --input ROOT --output OUT --splits train= --max-reject-fraction 1 --decode-images --format "


def repeat(part: str) -> str:
    part = part.replace("DIGITS", "1" * 4300)
    return "".join(part.replace("#", str(each)) for each in range(NUM_BYTES // (len(part) + 4 * ("#" in part))))


def encode(side: int, image_format: str = "JPEG", **options: bool) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, image_format, **options)
    return file.getvalue()


def list_files(case: dict[str, Any], parts: dict[str, list[str]]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a case."""
    if case["parts"] == "images":
        image = encode(7000, progressive=True)
        yield "scans", image[:-2] + image[image.rindex(b"\xff\xda") : -2] * 2000 + b"\xff\xd9"
        yield "large", encode(10_000, "PNG")
        yield "segments", image[:2] + b"\xff\xe0\0\2" * (NUM_BYTES // 4) + image[2:]
    elif case["parts"] == "damage":
        for number in range(10):  # the last bytes are those of an index
            data = np.random.default_rng(number).bytes(NUM_BYTES)
            yield f"random {number}", data[:4] + b"TFL3" + data + bytes(40) + bytes.fromhex("57fb808b247547db")
    else:
        for part in parts[case["parts"]]:
            yield repr(part), f"{case.get('head', '')}{repeat(part)}{case.get('tail', '')}".encode()


def run(case: dict[str, Any], content: bytes, root: Path, model: Path) -> tuple[str, bool]:
    """Write the files and run the command; return the end of its output, and whether it was a traceback."""
    image = content if case["parts"] == "images" else encode(64)
    names = ("a.jpg", "images/a.jpg", "image_2/a.jpg", "1/saved_model.pb", "ckpt.data-00000-of-00001", RECORDS)
    for name, data in {**dict.fromkeys(names, image), **LABEL_MAP, case.get("file", "a.jpg"): content}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    example = tf.train.Example.FromString(serialize(Image.new("RGB", (64, 64)), 1, np.empty((0, 4)), np.empty(0, int)))
    example.features.feature["image/encoded"].bytes_list.value[:] = [image]
    for name in ("a.tfrecord", RECORDS):
        write_records(root / name, [example.SerializeToString()])
    places = {"ROOT": str(root), "OUT": f"{root}_out", "MODEL": str(model), "TEXT": content.decode(errors="replace")}
    command = case.get("command") or INGEST + case["ingest"]
    words = [re.sub("ROOT|OUT|MODEL|TEXT", lambda place: places[place[0]], word) for word in command.split()]
    result = CliRunner().invoke(cli, words)
    is_traceback = not isinstance(result.exception, InputError | SystemExit | None)
    return f"{result.output.strip()[-60:]} {result.exception}"[-150:], is_traceback


def main() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests/support"))
    from tiny_detector import write_tiny_detector

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only cases whose name contains one of these")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    given, seconds, bad = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()), dict[str, float](), []
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_detector(Path(folder, "model"))
        for number, case in enumerate(given["cases"]):
            what = f"{number}: {case.get('command') or 'ingest ' + case['ingest']} {case.get('file', 'image')}"
            files = list_files(case, given["parts"]) if any(word in what for word in args.words or [""]) else ()
            for name, content in files:
                started = time.monotonic()
                end, is_traceback = run(case, content, Path(tempfile.mkdtemp(dir=folder), "data"), model)
                seconds[f"{what} {name}"] = spent = time.monotonic() - started
                bad += [f"{what} {name}"] if is_traceback or spent > LIMIT_SECONDS else []
                print(f"{spent:7.2f} s  {what} {name}  {end!r}", flush=True)
    print(f"{len(seconds)} cases; slow or with a traceback: {bad or 'none'}")
    if args.output:
        args.output.write_text(json.dumps(seconds, indent=1) + "\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
