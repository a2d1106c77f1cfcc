"""The checks of `detloom image-check`: of the image in which they run."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial

from detloom.components.fingerprints import check_code, package_fingerprint
from detloom.pipelines.doctor.check_result import CheckResult, run_checks
from detloom.pipelines.doctor.machine import check_folder, check_tensorflow
from detloom.pipelines.doctor.packages import check_packages
from detloom.pipelines.tfx_line import tfx_line
from detloom.schemas.errors import passes


def check_image(job_code: Sequence[str] = (), job_lines: Sequence[str] = ()) -> tuple[CheckResult, ...]:
    """Run all checks.

    Args:
        job_code: the code of the tasks of a compiled job; code that differs here is an error.
        job_lines: the TFX lines of its tasks, likewise.
    """
    return run_checks(
        {
            "code": partial(check_job_code, job_code),
            "TFX": partial(check_job_lines, job_lines),
            "packages": check_packages,
            "temporary files": partial(check_folder, "temporary files", tempfile.gettempdir()),
            "TensorFlow": check_tensorflow,
        }
    )


def check_job_lines(job_lines: Sequence[str] = ()) -> Iterator[CheckResult]:
    """Compare the TFX line with those of the tasks, as the container's entrypoint does."""
    here, differing = tfx_line(), [line for line in job_lines if line != tfx_line()]
    yield CheckResult(
        name="TFX",
        status="error" if differing else "ok",
        detail=f"TFX {here}",
        expected=", ".join(differing),
        next_step=f"build the image with TFX_LINE={differing[0]}, or compile with TFX {here}" if differing else "",
    )


def check_job_code(job_code: Sequence[str] = ()) -> Iterator[CheckResult]:
    """Compare this code with the code that the tasks were compiled for, as the container's entrypoint does."""
    package = f"package {package_fingerprint()}"
    differing = [code for code in job_code if not passes(check_code, code)]
    if not differing:
        same = f", {len(job_code)} tasks have the code of the job" if job_code else ""
        yield CheckResult(name="code", status="ok", detail=package + same)
        return
    yield CheckResult(
        name="code",
        status="error",
        detail=f"{package}, {len(differing)} of {len(job_code)} tasks have other code",
        expected=", ".join(differing),
        next_step="compile the job again with this code, or build the image from the job's code",
    )
