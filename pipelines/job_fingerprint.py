"""The package fingerprints in a compiled job: which code its containers must have."""

import re

from detloom.schemas.errors import InputError

FLAG = "--package_fingerprint"  # of the container's entrypoint
MAX_JOB_BYTES = 64 << 20  # far more than either backend takes
# Flag and value are neighbours in a list: on one line, on two, in JSON, in YAML, or in JSON within a string of JSON, as
# Vertex's training service gets its commands. So the text is searched, not its structure.
_FINGERPRINT = re.compile(re.escape(FLAG.encode()) + rb"""(?:[\s,"'\\=-]|\\n){1,200}([0-9a-f]{16})\b""")


def read_job_fingerprints(job: bytes, name: str) -> tuple[str, ...]:
    """All different ones, sorted; more than one if the job was pieced together.

    Args:
        job: a compiled job for either backend, JSON or YAML.
        name: what the error calls it.

    Raises:
        InputError: if there is none, or if the job is larger than `MAX_JOB_BYTES`.
    """
    if len(job) > MAX_JOB_BYTES:
        raise InputError(f"{name}: got more than {MAX_JOB_BYTES >> 20} MiB, allowed: a job that detloom compiled.")
    found = sorted({value.decode() for value in _FINGERPRINT.findall(job)})
    if not found:
        raise InputError(
            f"{name}: got no {FLAG} with 16 hex digits in it, allowed: a job that `detloom compile` wrote for Kubeflow "
            "or Vertex; compile the run file and name the file that came out."
        )
    return tuple(found)
