"""Check that a copied model loads and answers a request, in a process without detloom code."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from detloom.components.pusher.forbid_writes import landlock_version
from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.trainer_module.inference.check_onnx_file import check_onnx_file

LoadCheck = Callable[[Path], None]

_PROGRAM = Path(__file__).with_name("answer_one_image.py")
_FORBID_WRITES = Path(__file__).with_name("forbid_writes.py")
_NAMES = {
    "inputs": {name: names.SIGNATURE_INPUTS[name] for name in (names.SIGNATURE_ENCODED, names.SIGNATURE_IMAGES)},
    "outputs": names.OUTPUT_NAMES,
    "onnx_file": names.ONNX_FILE,
    "onnx_outputs": (names.OUTPUT_NAMES, names.RAW_OUTPUT_NAMES),  # of each form that the file can have
}
_MAX_REASON = 400  # characters of what TensorFlow says
_MAX_OUTPUT_BYTES = 64 << 10
_MAX_SECONDS = 10**9  # signal.alarm accepts no longer time
_PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("LC_", "TF_")


def check_serves(model_dir: Path, seconds: float = 600.0) -> None:
    """Load the SavedModel and its ONNX file and run images through them, on the CPU, because training may use the GPU.

    A graph can write files. The process may write into a folder of its own only; if the kernel cannot forbid the rest
    (Landlock, Linux 5.13), it gets a private copy of the model, whose address says nothing of the push folder.

    Raises:
        InputError: it cannot be loaded, its outputs are not those of an exported detector, or it takes too long.
    """
    _check_onnx(model_dir / names.ONNX_FILE)
    # The program is passed as text: run as a file, its folder would come first in sys.path. The alarm ends it even if
    # this process is killed.
    alarm = f"import signal\nsignal.alarm({math.ceil(min(seconds, _MAX_SECONDS))})\n"
    with (
        tempfile.TemporaryDirectory(prefix="detloom-load-") as empty,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        loaded, limits = model_dir.absolute(), ""
        if landlock_version():
            limits = f"{_FORBID_WRITES.read_text(encoding='utf-8')}\nforbid_writes{(empty, os.devnull)!r}\n"
        else:
            loaded = Path(shutil.copytree(model_dir, Path(empty, "model")))
        program = alarm + limits + _PROGRAM.read_text(encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, str(loaded), json.dumps(_NAMES)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=empty,
                env={**_environment(), "TMPDIR": empty},
                timeout=seconds,
                check=False,
            )
            is_late = done.returncode == -signal.SIGALRM
        except subprocess.TimeoutExpired:
            is_late = True
        if is_late:
            raise InputError(
                f"{model_dir}: the copy was not loaded and tested within {seconds:g} s; nothing was pushed. Check the "
                "machine's load, or raise push.load_seconds."
            )
        reason = escape(_reason(done.returncode, _read_end(output), _read_end(errors))[:_MAX_REASON]).rstrip(".")
    if reason:
        raise InputError(f"{model_dir}: the copy cannot be served: {reason}. Export the model again.")


def _check_onnx(path: Path) -> None:
    """Refuse a file that `predict` refuses: one with values in other files, or with operators of others."""
    try:
        if path.is_file():
            check_onnx_file(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: the copy cannot be served: {error}. Export the model again.") from None


def _environment() -> dict[str, str]:
    """Return the variables that Python and TensorFlow need. A graph can read and write files, so it gets no others."""
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    return {**passed, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def _read_end(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAX_OUTPUT_BYTES))
    return file.read(_MAX_OUTPUT_BYTES).decode("utf-8", errors="replace")


def _reason(returncode: int, output: str, errors: str) -> str:
    if returncode < 0:
        return f"the process that loads it was ended by signal {-returncode}, perhaps for lack of memory"
    if returncode:
        lines = errors.strip().splitlines() or ["unknown error"]
        return lines[-1]
    try:
        return str(json.loads(output.splitlines()[-1])["fault"])
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return "the test program printed no result"
