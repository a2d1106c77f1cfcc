"""Test an installed wheel. Run it in a directory outside of the checkout: wheel_smoke.py CHECKOUT."""

import importlib
import pkgutil
import sys
from importlib import metadata
from pathlib import Path

DATA_SUFFIXES = {".pbtxt", ".tsv", ".yaml", ".j2", ".css", ".js", ".typed", ".pyi"}  # as in setup.py's package_data
LAYERS = ("components", "pipelines", "schemas", "trainer_module")


def modules_under(checkout: Path) -> set[str]:
    """Return the dotted names of the modules in the checkout."""
    files = {Path("__init__.py")} | {
        file.relative_to(checkout) for layer in LAYERS for file in (checkout / layer).rglob("*.py")
    }
    return {".".join(("detloom", *file.with_suffix("").parts)).removesuffix(".__init__") for file in files}


def data_files_under(checkout: Path) -> set[Path]:
    """Return the data files, relative to the installed package."""
    files = (file for layer in LAYERS for file in (checkout / layer).rglob("*") if file.suffix in DATA_SUFFIXES)
    return {Path("py.typed")} | {file.relative_to(checkout) for file in files}


def fingerprint_faults(folder: Path, checkout: Path) -> list[str]:
    """Compare the fingerprints: an image with the wheel must accept a job compiled in the checkout."""
    fingerprint = importlib.import_module("detloom.components.fingerprints")
    in_checkout = [checkout / "detloom", checkout]
    if fingerprint.package_fingerprint() == fingerprint.package_fingerprint(in_checkout):
        return []
    files, theirs = fingerprint.package_files(), fingerprint.package_files(in_checkout)
    differing = sorted(
        name
        for name in files.keys() | theirs.keys()
        if name not in files or name not in theirs or files[name].read_bytes() != theirs[name].read_bytes()
    )
    return [f"fingerprint: {folder / name} differs from the checkout" for name in differing]


def main(checkout: Path) -> list[str]:
    """Return the problems, one line each."""
    package = importlib.import_module("detloom")
    folder = Path(str(package.__file__)).parent
    if folder.is_relative_to(checkout) and "site-packages" not in folder.parts:
        return [f"detloom was imported from the checkout: {folder}"]
    faults = []
    if metadata.version("detloom") != package.__version__:
        faults.append(
            f"version: got {metadata.version('detloom')} in the metadata, {package.__version__} in the package"
        )
    names = {"detloom"} | {module.name for module in pkgutil.walk_packages(package.__path__, "detloom.")}
    faults += [f"not in the wheel: {name}" for name in sorted(modules_under(checkout) - names)]
    faults += [f"in the wheel only: {name}" for name in sorted(names - modules_under(checkout))]
    for name in sorted(names):
        module = importlib.import_module(name)
        if not Path(str(module.__file__)).is_relative_to(folder):
            faults.append(f"{name} was imported from {module.__file__}")
    data = data_files_under(checkout)
    faults += [f"not in the wheel: {file}" for file in sorted(data) if not (folder / file).is_file()]
    faults += fingerprint_faults(folder, checkout)
    installed = {str(file).split("/")[0] for file in metadata.files("detloom") or []}
    faults += [f"installs a top-level {name}" for name in sorted(installed & {*LAYERS, "tests", "scripts"})]
    print(f"wheel-test: {len(names)} modules and {len(data)} data files from {folder}")
    return faults


if __name__ == "__main__":
    problems = main(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(f"wheel-test: {problem}" for problem in problems) or 0)
