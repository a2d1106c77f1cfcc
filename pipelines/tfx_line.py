"""The supported TFX lines: minor versions of TFX, each with its constraints. scripts/tfx_lines.sh is for shells."""

import importlib.metadata
import os
import re

from detloom.schemas.errors import InputError

TFX_LINES = ("1.21", "1.16")  # the preferred first

TPU_LINES = ("1.16",)  # those for whose TensorFlow there is a build for TPUs

# Packages that pip allows beside a line's TFX, which then cannot be imported: the required versions and the reason.
KNOWN_PROBLEMS = {
    "1.16": {
        "setuptools": ("<81", "TFX 1.16 imports pkg_resources, which later releases drop"),
        "dill": (">=0.3", "tfx-bsl 1.16 imports it, and only Beam before 2.65 installs it"),
    }
}

LIBTPU = "/lib/libtpu.so"  # where Dockerfile.tpu saves it
_MISSING_LIBTPU = re.compile(r"tensorflow-tpu .*requires libtpu\b")


def is_false_alarm(problem: str) -> bool:
    """Return True for a line of `pip check` that reports libtpu as missing, if the library is installed as a file."""
    return _MISSING_LIBTPU.match(problem) is not None and os.path.exists(LIBTPU)


def line_of(tfx_version: str) -> str:
    """Return the line of a version, such as 1.21 of 1.21.0."""
    return ".".join(tfx_version.split(".")[:2])


def tfx_line() -> str:
    """Return the line of the installed TFX without importing it."""
    return line_of(importlib.metadata.version("tfx"))


LINE_FLAG = "--tfx"  # an option of the container's entrypoint, with the line as --tfx=1.21
_LINE_IN_JOB = re.compile(rb"--tfx=(\d+\.\d+)")


def check_line(wanted: str) -> None:
    """Raise InputError unless TFX is of the line with which a task was compiled."""
    if wanted != tfx_line():
        raise InputError(
            f"the task was compiled with TFX {wanted}, this image has TFX {tfx_line()}: build the image with "
            f"TFX_LINE={wanted}, or compile with TFX {tfx_line()}."
        )


def read_job_lines(job: bytes) -> tuple[str, ...]:
    """Return the distinct TFX lines that the tasks of a compiled job name."""
    return tuple(sorted({line.decode() for line in _LINE_IN_JOB.findall(job)}))
