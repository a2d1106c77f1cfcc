"""Imports point one way, between the layers and between the rooms of each layer. Imports inside functions count too.

`python tests/test_layering.py` prints the order.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("schemas", "trainer_module", "components", "pipelines")
# Rooms of each layer (subpackages, and modules at its top), lowest first: a room imports rooms before it.
ROOMS = {
    "schemas": "lazy_names errors reading contracts model odapi presets load_config run_file",
    "trainer_module": "files runtime layers boxes detectors data drawing weights evaluation run_state training "
    "export inference train_and_export tfx_run tuner __init__",
    "components": "properties fingerprints artifact_types beam_job pages storage examples_folder record_files "
    "evaluation_requirements image_header similarity example_gen dataset_validator pusher evaluator model_card retrain "
    "notifier resolvers notebooks __init__",
    "pipelines": "samples tfx_line dag check_learned_columns check_config lineage predict serving compile container "
    "local init find_examples validate_folder backends doctor manifests timer local_runner "
    "python_api kfp_components command_line commands cli",
}
# Roots that a layer must not import; of `schemas`, the only ones it may beside the standard library.
FORBIDDEN = {"trainer_module": {"tfx", "tfx_bsl", "apache_beam", "ml_metadata", "kfp"}}
ALLOWED_IN_SCHEMAS = {"numpy", "yaml"}  # PyYAML: run files are YAML and are typed and checked there
# Beyond them, by file. protobuf: only its own tokenizer cuts a pipeline.config as the Object Detection API does.
ALLOWED_IN_FILE = {"schemas/reading/proto_text.py": "google.protobuf"}


@functools.cache
def imports(source: str, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return (line, dotted name) of every import; relative names are resolved against `package`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            # `from detloom import x` may import the layer x, so the names count as well.
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def fault_of(layer: str, name: str, file: Path) -> str | None:
    """Return what is wrong with importing `name` in a file of `layer`, or None."""
    root, _, rest = name.partition(".")
    if name.startswith(ALLOWED_IN_FILE.get(file.as_posix(), "no such package")):
        return None
    if root in LAYERS:
        return f"import it as detloom.{root}"
    if root == "detloom":
        target = rest.partition(".")[0]
        if target in LAYERS and LAYERS.index(target) > LAYERS.index(layer):
            return f"{layer} must not know {target}"
        if target == layer:
            return fault_between_rooms(layer, room_of(Path(*file.parts[1:])), room_of(Path(*rest.split(".")[1:])))
    elif root in FORBIDDEN.get(layer, ()):
        return f"{layer} must not import {root}"
    elif layer == "schemas" and root not in sys.stdlib_module_names | ALLOWED_IN_SCHEMAS:
        return f"schemas may import the standard library, {' and '.join(sorted(ALLOWED_IN_SCHEMAS))} only"
    return None


def room_of(path: Path) -> str:
    """Return the room of a file, or of a dotted name as a path, below its layer."""
    return path.parts[0].removesuffix(".py") if path.parts else "__init__"


def fault_between_rooms(layer: str, importer: str, imported: str) -> str | None:
    """Return what is wrong with an import from room `importer` of room `imported`, or None."""
    rooms = ROOMS[layer].split()
    if importer not in rooms:
        return f"{layer}/{importer} has no place in ROOMS of {Path(__file__).name}"
    if imported in rooms and rooms.index(imported) > rooms.index(importer):
        return f"{layer}/{importer} must not know {layer}/{imported}"
    return None


def faults(layer: str, source: str, file: Path) -> list[str]:
    package = ("detloom", *file.parent.parts)
    found = ((line, name, fault_of(layer, name, file)) for line, name in imports(source, package))
    return [f"{file}:{line}: {name}: {fault}" for line, name, fault in found if fault]


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


def module_imports(name: str, file: Path, files: dict[str, Path]) -> Iterator[str]:
    """Yield the modules among `files` that the module `name` imports."""
    for _, imported in imports(file.read_text("utf-8"), tuple(name.split(".")[:-1])):
        found = imported if imported in files else imported.rpartition(".")[0]
        if found in files and found != name:
            yield found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str):
    files = modules(layer)
    assert files, f"{layer}/ holds no Python file"
    wrong = [fault for file in files for fault in faults(layer, file.read_text("utf-8"), file.relative_to(ROOT))]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("trainer_module/boxes/nms.py", "from detloom.trainer_module.data import records"),
        ("trainer_module/boxes/nms.py", "def f():\n    import detloom.trainer_module.tuner"),
        ("pipelines/no_such_room/x.py", "from detloom.pipelines.dag import create_pipeline"),
        ("schemas/x.py", "def f():\n    from detloom.trainer_module import train"),
        ("schemas/x.py", "from google.protobuf import text_format"),
        ("trainer_module/x.py", "\nfrom ..pipelines import dag"),
        ("trainer_module/x.py", "import apache_beam.io"),
        ("pipelines/x.py", "from schemas import config"),
    ],
)
def test_wrong_arrow_is_reported_with_file_and_line(file: str, source: str):
    (fault,) = faults(Path(file).parts[0], source, Path(file))
    assert fault.startswith(f"{file}:{1 + source.count(chr(10))}: ")


@pytest.mark.parametrize("layer", LAYERS)
def test_every_room_exists(layer: str):
    for room in ROOMS[layer].split():
        assert (ROOT / layer / room / "__init__.py").is_file() or (ROOT / layer / f"{room}.py").is_file(), room


@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_imports_itself_through_others(layer: str):
    files = {".".join(("detloom", *file.relative_to(ROOT).with_suffix("").parts)): file for file in modules(layer)}
    graph = {name: set(module_imports(name, file, files)) for name, file in files.items()}
    while leaves := {name for name, imported in graph.items() if not imported & graph.keys()}:
        graph = {name: imported for name, imported in graph.items() if name not in leaves}
    assert not graph, f"import cycle among or above {', '.join(sorted(graph))}"


if __name__ == "__main__":
    print(" <- ".join(LAYERS))
    for name in LAYERS:
        print(f"  {name}: {' <- '.join(ROOMS[name].split())}")
