"""The checks of `detloom image-check`: of the image in which they run."""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial

from detloom.components.fingerprints import check_code, package_fingerprint
from detloom.pipelines.doctor.check_result import CheckResult, run_checks
from detloom.pipelines.doctor.machine import check_folder, check_tensorflow
from detloom.pipelines.doctor.packages import check_packages
from detloom.schemas.errors import passes


def check_image(job_code: Sequence[str] = ()) -> tuple[CheckResult, ...]:
    """Run all checks.

    Args:
        job_code: the code of the tasks of a compiled job; code that differs here is an error.
    """
    return run_checks(
        {
            "code": partial(check_job_code, job_code),
            "packages": check_packages,
            "temporary files": partial(check_folder, "temporary files", tempfile.gettempdir()),
            "TensorFlow": check_tensorflow,
        }
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
