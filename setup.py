"""Packaging. The fixed top-level folders are mapped to `detloom.*`; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

ROOTS = ("components", "pipelines", "schemas", "trainer_module")

folders = {"detloom": "detloom"}
for root in ROOTS:
    for init in sorted(Path(__file__).parent.glob(f"{root}/**/__init__.py")):
        folder = init.parent.relative_to(Path(__file__).parent).as_posix()
        folders["detloom." + folder.replace("/", ".")] = folder

setup(
    packages=list(folders),
    package_dir=folders,
    # "**": also in folders that hold only data, such as pipelines/samples.
    package_data={
        "": ["*.pyi", "py.typed", *(f"**/*.{suffix}" for suffix in ("pbtxt", "tsv", "yaml", "j2", "css", "js"))]
    },
)
