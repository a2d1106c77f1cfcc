import os
import stat

import pytest
from pushes import push

from detloom.components.pusher import push_to_folder
from detloom.components.pusher.manifest import MANIFEST_FILE, RECORD_FILE
from detloom.components.pusher.push import list_versions
from detloom.components.pusher.versions import find_class_change, open_destination
from detloom.schemas.errors import InputError


def test_other_names_with_a_leftover_prefix_are_kept(model, tmp_path):
    serving = tmp_path / "serving"
    (serving / ".push-notes").mkdir(parents=True)
    (serving / ".push-notes" / "mine").write_text("")
    (serving / ".push-notes.txt").write_text("")
    push(model, serving, 1.0)
    names = [".push-notes", ".push-notes.txt", ".push.lock", "1", "push_record.jsonl"]
    assert sorted(path.name for path in serving.iterdir()) == names
    assert (serving / ".push-notes" / "mine").exists()


@pytest.mark.reliability("kill", "push")
def test_leftovers_of_a_killed_push_are_removed_but_not_the_target_of_a_link(make_model, model, tmp_path):
    serving, elsewhere = tmp_path / "serving", tmp_path / "elsewhere"
    serving.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    (serving / ".trash-1").symlink_to(elsewhere)
    (serving / ".push-2").write_text("")
    make_model(serving / ".push-3")
    push(model, serving, 5.0)
    assert sorted(path.name for path in serving.iterdir()) == [".push.lock", "5", "push_record.jsonl"]
    assert (elsewhere / "kept").exists()


def test_leftover_that_cannot_be_deleted_is_logged_and_does_not_fail_the_push(model, tmp_path, monkeypatch, caplog):
    def refuse(path, **options):
        raise OSError(16, "Device or resource busy", f"{path}/.nfs1")

    (tmp_path / "serving" / ".push-2").mkdir(parents=True)
    monkeypatch.setattr(push_to_folder.shutil, "rmtree", refuse)
    push(model, tmp_path / "serving", 5.0)
    assert list_versions(tmp_path / "serving") == [5]
    assert "Device or resource busy: " in caplog.text
    assert ".nfs1" in caplog.text


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize("name", ["saved_model.pb", "added"])
def test_copy_that_was_changed_by_its_own_graph_is_not_published(name, model, other_model, tmp_path):
    push(model, tmp_path / "serving", 1.0)
    with pytest.raises(OSError, match=f"{name}: "):
        push(other_model, tmp_path / "serving", 2.0, check=lambda copy: (copy / name).write_text("x"))
    assert list_versions(tmp_path / "serving") == [1]
    assert not list((tmp_path / "serving").glob(".push-*"))


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize("name", ["9999999999", "0009", "notes.txt", "1/assets/more", "1/saved_model.pb", RECORD_FILE])
def test_what_appears_in_the_push_folder_during_the_load_check_stops_the_push(
    name, model, other_model, make_model, tmp_path
):
    serving = tmp_path / "serving"
    push(model, serving, at=1.0)

    def plant(copy):
        (serving / name).write_bytes(b"planted") if "." in name or "/" in name else make_model(serving / name)

    with pytest.raises(InputError, match=rf"changed while .*{name}"):
        push(other_model, serving, at=2.0, check=plant)
    assert "2" not in {path.name for path in serving.iterdir()}


def test_link_in_the_served_version_causes_a_new_version(model, tmp_path):
    first = push(model, tmp_path / "serving", 1.0)
    (first.path / "more").symlink_to("/etc/hostname")
    assert push(model, tmp_path / "serving", 2.0).is_new


def test_version_is_as_readable_as_the_push_folder_with_any_umask(model, tmp_path):
    (tmp_path / "serving").mkdir(mode=0o755)
    previous = os.umask(0o077)
    try:
        result = push(model, tmp_path / "serving", 1.0)
    finally:
        os.umask(previous)
    for path, mode in (("", 0o755), ("variables", 0o755), ("saved_model.pb", 0o644)):
        assert stat.S_IMODE((result.path / path).stat().st_mode) == mode


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize("name", [".push.lock", RECORD_FILE])
def test_lock_file_or_record_that_is_a_link_is_refused(name, model, tmp_path):
    (tmp_path / "serving").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "serving" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=f"serving/{name}"):
        push(model, tmp_path / "serving", 1.0)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [RECORD_FILE, f"1/{MANIFEST_FILE}"])
def test_named_pipe_in_the_push_folder_is_refused_without_blocking(name, model, tmp_path):
    path = tmp_path / "serving" / name
    push(model, tmp_path / "serving", 1.0)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=rf"{name}: "):
        push(model, tmp_path / "serving", 2.0)
    assert list_versions(tmp_path / "serving") == [1]


@pytest.mark.reliability("lost lease", "push")
def test_push_whose_lock_file_was_removed_publishes_nothing(model, other_model, tmp_path):
    serving = tmp_path / "serving"
    push(model, serving, 1.0)

    def lose(copy):
        (serving / ".push.lock").unlink()
        assert push(other_model, serving, 1.0).version == 6  # 5 is being written

    with pytest.raises(OSError, match=r"\.push\.lock"):
        push(other_model, serving, 5.0, check=lose)
    assert list_versions(serving) == [1, 6]


@pytest.mark.parametrize(
    ("served", "change"), [("item { id: 1 name: 'a' }", "other classes"), ("item { id: 1 na", "unknown")]
)
def test_classes_are_compared_with_the_newest_complete_version(tmp_path, served, change):
    """A folder of a version without a model, which somebody made or a copy left, does not serve."""
    for folder, text in ((tmp_path / "serving/3", served), (tmp_path / "model", "item { id: 1 name: 'b' }")):
        (folder / "assets").mkdir(parents=True)
        (folder / "saved_model.pb").touch()
        (folder / "assets/label_map.pbtxt").write_text(text)
    (tmp_path / "serving/4").mkdir()
    destination = open_destination(tmp_path / "serving")
    assert change in find_class_change(destination, tmp_path / "model", "none")
    assert find_class_change(destination, tmp_path / "model", "any") == ""
