import shutil

import pytest

from detloom.components.pusher.endpoint import label_model
from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import roll_back
from detloom.components.resolvers import copy_version
from detloom.components.resolvers.copy_version import copy_production_model
from detloom.schemas.errors import InputError

ENDPOINT = "vertex://my-project/us-central1/cells"


@pytest.fixture
def copy(tmp_path):
    """Copy into out/Format-Serving; return the copied version and the content of its graph."""

    def run(candidate=None):
        target = tmp_path / "out" / "Format-Serving"
        found = copy_production_model(str(tmp_path / "pushed"), target, candidate)
        assert [path.name for path in target.parent.glob("*")] == (["Format-Serving"] if found else [])
        return found, (target / "saved_model.pb").read_text() if found else None

    return run


def test_without_a_pushed_version_nothing_is_written(copy):
    assert copy() == (None, None)


def test_the_newest_version_is_copied_with_all_its_files(copy, push, tmp_path):
    push("first", 100)
    push("second", 200)
    found, graph = copy()
    assert (found.version, graph) == ("200", "second")
    assert found.address == str(tmp_path / "pushed" / "200")
    files = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {"saved_model.pb", "variables.index"}


def test_the_candidate_is_skipped(copy, push):
    push("first", 100)
    candidate = push("second", 200)
    found, graph = copy(candidate)
    assert (found.version, graph) == ("100", "first")


def test_without_another_version_nothing_is_found(copy, push):
    assert copy(push("only", 100)) == (None, None)


def test_a_rolled_back_version_is_the_production_model(copy, push, tmp_path):
    push("first", 100)
    candidate = push("second", 200)
    roll_back(tmp_path / "pushed", reason="worse", check=lambda folder: None, now=lambda: 300)
    found, graph = copy(candidate)
    assert (found.version, graph) == ("300", "first")


def test_a_version_without_a_manifest_counts(copy, push, make_model, tmp_path):
    push("first", 100)
    by_hand = make_model("by hand")
    shutil.copytree(by_hand, tmp_path / "pushed" / "500")
    assert copy()[1] == "by hand"
    assert copy(by_hand)[1] == "first"


def test_a_version_without_a_model_is_skipped(copy, push, tmp_path, caplog):
    push("first", 100)
    (tmp_path / "pushed" / "500").mkdir()
    (tmp_path / "pushed" / "500" / "note.txt").write_text("soon")
    assert copy()[1] == "first"
    assert "/500: " in caplog.text


@pytest.mark.reliability("torn file", "evaluate")
def test_a_modified_version_is_refused_and_not_skipped(copy, push, tmp_path):
    push("first", 100)
    push("second", 200)
    (tmp_path / "pushed" / "200" / "variables" / "variables.index").write_bytes(b"other")
    with pytest.raises(InputError, match=r"pushed/200: .*variables/variables\.index"):
        copy_production_model(str(tmp_path / "pushed"), tmp_path / "out" / "Format-Serving")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.reliability("concurrent runs", "evaluate")
def test_a_version_that_is_removed_during_the_copy_is_skipped(copy, push, tmp_path, monkeypatch):
    push("first", 100)
    push("second", 200)
    find_files = copy_version.find_files

    def find_and_remove(folder):
        found = find_files(folder)
        if folder.name == "200":
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(copy_version, "find_files", find_and_remove)
    assert copy()[1] == "first"


@pytest.mark.reliability("kill", "evaluate")
def test_the_remains_of_a_killed_copy_are_removed(copy, push, tmp_path):
    push("first", 100)
    left = tmp_path / "out" / f".Format-Serving.{2**31 - 1}.partial"  # more than any process has
    left.mkdir(parents=True)
    (left / "saved_model.pb").write_text("half")
    (left / "more").write_text("half")
    assert copy()[1] == "first"
    assert not left.exists()
    assert not (tmp_path / "out" / "Format-Serving" / "more").exists()


def test_the_model_that_an_endpoint_serves_is_copied(vertex, make_model, tmp_path):
    def copy(candidate=None):
        target = tmp_path / "out" / "Format-Serving"
        found = copy_production_model(ENDPOINT, target, candidate)
        return found and (found.version, (target / "saved_model.pb").read_text())

    def deploy(name):
        folder = make_model(name)
        resource = vertex.upload(str(folder))
        vertex.deploy(resource, 100)
        label_model(ENDPOINT, resource, build_manifest(folder).identity)
        return folder

    assert copy() is None
    first = deploy("first")
    assert copy(first) is None
    second = deploy("second")
    assert copy() == ("projects/1/models/2", "second")
    assert copy(second) == ("projects/1/models/1", "first")
    vertex.traffic = {"0": 100, "1": 0}  # a rollback
    assert copy() == ("projects/1/models/1", "first")
    assert copy(first) is None
