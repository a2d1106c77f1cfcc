"""Does a copy load and answer? Asked in a process of its own, with TensorFlow and nothing of ours."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from detloom.schemas.detections import OUTPUT_NAMES, SIGNATURE_ENCODED, SIGNATURE_IMAGES, SIGNATURE_INPUTS
from detloom.schemas.errors import InputError

LoadCheck = Callable[[Path], None]

_PROGRAM = Path(__file__).with_name("one_request.py")
_SIGNATURES = (SIGNATURE_ENCODED, SIGNATURE_IMAGES)
_NAMES = {"inputs": {name: SIGNATURE_INPUTS[name] for name in _SIGNATURES}, "outputs": OUTPUT_NAMES}
_MAX_REASON = 400  # characters of what TensorFlow says


def check_serves(model_dir: Path, seconds: float = 600.0) -> None:
    """Load the SavedModel and run one picture through it, on the CPU: a GPU may be full with a training's memory.

    Raises:
        InputError: it cannot be loaded, gives another answer than an exported detector, or takes longer.
    """
    # The program as text: given as a file, its folder would come first where modules are looked for.
    command = [
        sys.executable,
        "-c",
        _PROGRAM.read_text(encoding="utf-8"),
        str(model_dir.absolute()),
        json.dumps(_NAMES),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory(prefix="detloom-load-") as empty:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", cwd=empty, env=environment, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{model_dir}: the copy was not loaded and asked within {seconds:g} s, so it is not served; look at "
                "the machine's load, or raise push.load_seconds."
            ) from None
    reason = _reason(done)
    if reason:
        raise InputError(f"{model_dir}: the copy cannot be served: {reason}. Export the model again.")


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode < 0:
        return f"the process that loads it was ended by signal {-done.returncode}, which may be for want of memory"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        return lines[-1][:_MAX_REASON].rstrip(".")
    try:
        return str(json.loads(done.stdout.splitlines()[-1])["fault"])
    except (IndexError, ValueError, KeyError, TypeError):
        return "its program gave no answer"
