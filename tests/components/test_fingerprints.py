import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import detloom
from detloom.components import fingerprints
from detloom.components.fingerprints import (
    DATA_SUFFIXES,
    LAYERS,
    package_files,
    package_fingerprint,
    read_job_code,
    source_fingerprint,
)
from detloom.schemas.errors import InputError

LOSSES = "detloom.trainer_module.detectors.one_stage.losses"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package: a imports b inside a function, b names a template that extends another, c is unrelated."""
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text('"""Room; `__init__.pyi` lists its names."""\n')
    (tmp_path / "room" / "__init__.pyi").write_text("from detloom.room.c import x\n")
    (tmp_path / "room" / "a.py").write_text("def f():\n    from detloom.room import b\n    return b\n")
    (tmp_path / "room" / "b.py").write_text("import numpy\nimport detloom.hall.load\nPAGE = 'page.html.j2'\n")
    (tmp_path / "room" / "c.py").write_text("x = 1\n")
    (tmp_path / "room" / "page.html.j2").write_text("{% extends 'frame.html.j2' %}\n")
    (tmp_path / "room" / "notes.txt").write_text("nobody reads this\n")
    (tmp_path / "hall").mkdir()
    (tmp_path / "hall" / "__init__.py").write_text('"""Hall."""\n')
    (tmp_path / "hall" / "load.py").write_text("SCRIPT = 'sort.js'\n")
    (tmp_path / "hall" / "frame.html.j2").write_text("<html>\n")
    (tmp_path / "hall" / "sort.js").write_text('"use strict";\n')
    (tmp_path / "hall" / "other.html.j2").write_text("nobody extends this\n")
    monkeypatch.setattr(detloom, "__path__", [str(tmp_path)])
    fingerprints._origin.cache_clear()
    yield tmp_path / "room"
    fingerprints._origin.cache_clear()


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("a.py", True),
        ("b.py", True),
        ("__init__.py", True),
        ("__init__.pyi", False),
        ("page.html.j2", True),
        ("../hall/frame.html.j2", True),
        ("../hall/sort.js", True),
        ("c.py", False),
        ("notes.txt", False),
        ("../hall/other.html.j2", False),
    ],
)
def test_the_fingerprint_covers_exactly_the_imported_modules_and_named_files(package: Path, edited, changes):
    before = source_fingerprint("detloom.room.a")
    with (package / edited).open("a") as file:
        file.write("EDITED = 1\n")
    assert (source_fingerprint("detloom.room.a") != before) == changes


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("def f():\n    'Return b.'\n\n    # late\n    from detloom.room import b\n    return (b)\n", False),
        ('"""About a."""\ndef f():\n  from detloom.room import b; return b\n', False),
        ("def f():\n    from detloom.room import b\n    return b, 1\n", True),
    ],
)
def test_only_executed_code_changes_the_fingerprint(package: Path, text, changes):
    before = source_fingerprint("detloom.room.a")
    (package / "a.py").write_text(text)
    assert (source_fingerprint("detloom.room.a") != before) == changes


def test_functions_of_a_package_are_covered_only_if_the_package_itself_is_imported(package: Path):
    (package / "__init__.py").write_text("def late():\n    from detloom.room import c\n    return c\n")
    assert "detloom.room.c" not in fingerprints._reach("detloom.room.a")
    (package / "a.py").write_text("from detloom.room import late\n")
    assert "detloom.room.c" in fingerprints._reach("detloom.room.a")


def test_only_the_trainer_and_what_comes_after_it_cover_the_losses():
    nodes = ("example_gen", "dataset_validator", "retrain", "evaluator", "model_card", "notifier")
    reached = {node for node in nodes if LOSSES in fingerprints._reach(f"detloom.components.{node}.component")}
    assert reached == {"evaluator", "model_card"}
    assert LOSSES in fingerprints._reach("detloom.trainer_module")


def test_imports_for_type_checkers_are_not_covered(package: Path):
    (package / "a.py").write_text(
        "if TYPE_CHECKING:\n    from detloom.room import c\nelse:\n    from detloom.room import b\n"
    )
    reached = fingerprints._reach("detloom.room.a")
    assert "detloom.room.b" in reached
    assert "detloom.room.c" not in reached


def test_no_task_covers_the_code_of_other_nodes():
    reached = fingerprints._reach("detloom.pipelines.container.entrypoint")
    assert not [name for name in reached if name.startswith("detloom.components.") and name.count(".") > 2]
    assert not [name for name in reached if name.startswith("detloom.schemas.run_file.")]
    trainer = set(fingerprints._reach("detloom.trainer_module"))
    assert {"detloom.trainer_module.training.loop", "detloom.schemas.model.config"} <= trainer
    assert not any(name.startswith("detloom.components") for name in trainer)


def test_the_validator_fingerprint_covers_its_templates():
    found = fingerprints._named_data_files(fingerprints._reach("detloom.components.dataset_validator.component"))
    folders = {
        "dataset_validator.report": ("report.html.j2", "data_macros.html.j2", "filter_images.js"),
        "pages": ("page.html.j2", "macros.html.j2", "sort_tables.js", "zoom.js"),
    }
    assert {f"detloom.components.{folder}/{name}" for folder, names in folders.items() for name in names} <= set(found)


ROOT = Path(__file__).parents[2]
# Files of a small checkout that its wheel contains, and files that it does not contain.
PACKED = {
    "__init__.py": "'''The package.'''\n",
    "py.typed": "",
    "schemas/__init__.py": "",
    "schemas/room.py": "x = 1\n",
    "pipelines/__init__.py": "",
    "pipelines/samples/demo.yaml": "name: demo\n",
    "pipelines/pages/__init__.py": "",
    "pipelines/pages/page.html.j2": "<html>\n",
}
UNPACKED = {
    "setup.py": "",
    "tests/test_room.py": "",
    "schemas/notes.txt": "",
    "schemas/__pycache__/room.cpython-310.pyc": "",
    "pipelines/samples/make_demo.py": "",  # in a folder without __init__.py
    "pipelines/.hidden/room.yaml": "",
}


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def installed(tmp_path):
    for name, text in PACKED.items():
        write(tmp_path / "site-packages" / "detloom" / name, text)
    return tmp_path / "site-packages" / "detloom"


@pytest.fixture
def checkout(tmp_path):
    for name, text in (PACKED | UNPACKED).items():
        write(tmp_path / "checkout" / ("detloom" if name in ("__init__.py", "py.typed") else "") / name, text)
    return tmp_path / "checkout"


def test_a_checkout_and_a_wheel_of_it_have_the_same_fingerprint(installed, checkout):
    in_checkout = [checkout / "detloom", checkout]
    assert set(package_files([installed])) == set(package_files(in_checkout)) == set(PACKED)
    assert package_fingerprint([installed]) == package_fingerprint(in_checkout)


def test_the_package_fingerprint_changes_with_content_and_names_of_files_in_the_wheel(installed, checkout):
    before = package_fingerprint([installed])
    (installed / "schemas" / "room.py").rename(installed / "schemas" / "hall.py")
    assert package_fingerprint([installed]) != before
    (installed / "schemas" / "hall.py").rename(installed / "schemas" / "room.py")
    (installed / "pipelines/pages/page.html.j2").write_text("edited")
    assert package_fingerprint([installed]) != before
    for name in UNPACKED:
        (checkout / name).write_text("edited")
    assert package_fingerprint([checkout / "detloom", checkout]) == before


def test_the_package_fingerprint_covers_all_layers(installed):
    layers = {"__init__.py", "py.typed", "pipelines/samples/demo.yaml", "components/pages/page.html.j2"}
    assert layers <= set(package_files())
    assert re.fullmatch("[0-9a-f]{16}", package_fingerprint([installed]))


def test_layers_and_suffixes_match_the_packaging():
    source = (ROOT / "setup.py").read_text()
    (suffixes,) = (
        ast.literal_eval(node.generators[0].iter)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.GeneratorExp)
    )
    assert tuple(f".{suffix}" for suffix in suffixes) == DATA_SUFFIXES
    assert f"ROOTS = {LAYERS}".replace("'", '"') in source


def test_the_package_fingerprint_needs_only_the_standard_library(installed):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
        "from detloom.components.fingerprints import package_fingerprint; package_fingerprint([Path(sys.argv[1])])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'detloom'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__main__']"


ONE, OTHER = "0123456789abcdef", "1234567890123456"  # without quotes, the second is a number in YAML


def executors(*fingerprints: str) -> dict:
    """Return a job with commands as in the deploymentSpec of both backends."""
    command = ["python", "-m", "detloom.pipelines.container.entrypoint", "--place", "kubeflow", "--code"]
    return {
        "deploymentSpec": {
            "executors": {
                f"node{i}_executor": {"container": {"command": [*command, code(each)], "args": ["--x", "{{$}}"]}}
                for i, each in enumerate(fingerprints)
            }
        }
    }


def code(fingerprint: str) -> str:
    return f"detloom.pipelines.container.entrypoint+detloom.trainer_module={fingerprint}"


def job_for_vertex(indent):
    return json.dumps({"displayName": "demo", "pipelineSpec": executors(ONE, ONE)}, indent=indent)


def job_for_kubeflow(flow):
    return yaml.safe_dump_all([executors(ONE, ONE), {"platforms": {"kubernetes": {}}}], default_flow_style=flow)


def json_inside_json():
    specs = json.dumps({"worker_pool_specs": [{"container_spec": executors(ONE)}]}, indent=1)
    return json.dumps({"custom_config": json.dumps({"ai_platform_training_args": specs})})


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (job_for_vertex(2), [ONE]),
        (job_for_vertex(None), [ONE]),
        (job_for_kubeflow(True), [ONE]),
        (job_for_kubeflow(False), [ONE]),
        (json_inside_json(), [ONE]),
        (yaml.safe_dump(executors(OTHER, ONE, OTHER)), [ONE, OTHER]),
    ],
)
def test_the_code_of_a_job_is_found(job, expected):
    assert read_job_code(job.encode(), "job") == tuple(map(code, expected))


@pytest.mark.parametrize(
    "job", [b"", b"\x00\xff", b"name: demo\n", b"--code", f"--code: {code(ONE)}0".encode(), f"--code {ONE}".encode()]
)
def test_a_file_without_code_is_refused(job):
    with pytest.raises(InputError, match=r"^job\.yaml: .*--code .*`detloom compile`"):
        read_job_code(job, "job.yaml")


def test_a_huge_file_is_refused(monkeypatch):
    monkeypatch.setattr(fingerprints, "MAX_JOB_BYTES", 1 << 20)
    with pytest.raises(InputError, match="got more than 1 MiB"):
        read_job_code(b" " * ((1 << 20) + 1), "job.yaml")
