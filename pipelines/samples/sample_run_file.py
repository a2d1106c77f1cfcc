"""The run files that the package contains."""

from pathlib import Path

RUN_FILE_VARIABLE = "DETLOOM_RUN_FILE"  # names the run file where no argument can, as under the tfx command line


def sample_run_file(name: str) -> Path:
    """Return the path of a run file of the package: "demo" or "bccd"."""
    return Path(__file__).with_name(f"{name}.yaml")
