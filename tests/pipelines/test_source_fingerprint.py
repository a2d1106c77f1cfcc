from pathlib import Path

import pytest

import detloom
from detloom.pipelines import source_fingerprint as module
from detloom.pipelines.source_fingerprint import source_fingerprint


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the idea: a reads b inside a function; b names a page, which extends a frame; c stands apart."""
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text('"""Room."""\n')
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
    module._origin.cache_clear()
    yield tmp_path / "room"
    module._origin.cache_clear()


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("a.py", True),
        ("b.py", True),
        ("__init__.py", True),
        ("page.html.j2", True),
        ("../hall/frame.html.j2", True),
        ("../hall/sort.js", True),
        ("c.py", False),
        ("notes.txt", False),
        ("../hall/other.html.j2", False),
    ],
)
def test_it_changes_with_what_the_module_reaches_and_with_nothing_else(package: Path, edited, changes):
    before = source_fingerprint("detloom.room.a")
    with (package / edited).open("a") as file:
        file.write("# edited\n")
    assert (source_fingerprint("detloom.room.a") != before) == changes


def test_the_trainer_reaches_the_loop_and_not_the_components():
    reached = set(module._reach("detloom.trainer_module"))
    assert {"detloom.trainer_module.train_loop", "detloom.trainer_module.losses", "detloom.schemas.config"} <= reached
    assert not any(name.startswith("detloom.components") for name in reached)


def test_the_validator_reaches_its_templates_and_the_frame_around_them():
    found = module._named_data_files(module._reach("detloom.components.dataset_validator.component"))
    assert {
        "detloom.components.dataset_validator/report.html.j2",
        "detloom.components.dataset_validator/data_macros.html.j2",
        "detloom.components.pages/page.html.j2",
        "detloom.components.pages/macros.html.j2",
        "detloom.components.pages/sort_tables.js",
    } <= set(found)
