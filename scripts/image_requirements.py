"""Print the packages of detloom's image: image_requirements.py PYPROJECT ACCELERATOR [EXTRAS].

A separate script, so that the image build installs packages again only if these lines of pyproject.toml change.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pip contains a copy of it
    from pip._vendor import tomli as tomllib

ACCELERATED = {
    "cpu": [],
    "gpu": ["tensorflow[and-cuda]"],
    "tpu": [],  # the Dockerfile installs the TPU build of the same version over the usual one
}


def requirements(pyproject: str, accelerator: str, extras: str = "") -> list[str]:
    """Return the requirements for pip.

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
