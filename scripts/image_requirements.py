"""Prints what detloom's image has to install: image_requirements.py PYPROJECT ACCELERATOR [EXTRAS].

Apart from the Dockerfile so that only a change of these lines, and none elsewhere in pyproject.toml, installs anew.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; every environment's pip brings this
    from pip._vendor import tomli as tomllib

ACCELERATED = {
    "cpu": [],
    "gpu": ["tensorflow[and-cuda]"],
    "tpu": [],  # the Dockerfile lays the TPU build over the usual one, whose version it must have
}


def requirements(pyproject: str, accelerator: str, extras: str = "") -> list[str]:
    """For pip, one a line.

    Args:
        pyproject: text of pyproject.toml.
        extras: names of optional dependencies, separated by commas.

    Raises:
        ValueError: for an unknown accelerator or extra.
    """
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    names = [name.strip() for name in extras.split(",") if name.strip()]
    if accelerator not in ACCELERATED:
        raise ValueError(f"ACCELERATOR: got {accelerator!r}, allowed: {', '.join(ACCELERATED)}.")
    if unknown := sorted(set(names) - set(optional)):
        raise ValueError(f"EXTRAS: got {', '.join(unknown)}, allowed: {', '.join(sorted(optional))}.")
    lines = [*project["dependencies"], *ACCELERATED[accelerator]]
    return lines + [line for name in names for line in optional[name]]


if __name__ == "__main__":
    try:
        print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:])))
    except ValueError as error:
        sys.exit(str(error))
