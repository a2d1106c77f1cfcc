import json

import pytest
from click.testing import CliRunner

from detloom.components.pusher import atomic_push
from detloom.components.pusher.atomic_push import list_versions, push_model, read_records
from detloom.components.pusher.push_record import Origin
from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError


@pytest.fixture(autouse=True)
def no_load(monkeypatch):
    """The models here hold no graph; the check that loads them has its own tests."""
    for function in (atomic_push.push_model, atomic_push.roll_back):
        monkeypatch.setitem(function.__kwdefaults__, "check", lambda folder: None)


@pytest.fixture
def serving(tmp_path):
    """Versions 100, blessed, and 200, by hand."""
    origin = Origin(model_uri="m", by="ann", run_id="run-1", blessing={"blessed": True}, metrics={"AP": 0.4321})
    push_model(make_model(tmp_path / "first", b"1"), tmp_path / "serving", origin=origin, now=lambda: 100.0)
    by_hand = Origin(model_uri="n", by="b\x1b[1mob")
    push_model(make_model(tmp_path / "second", b"2"), tmp_path / "serving", origin=by_hand, now=lambda: 200.0)
    return tmp_path / "serving"


def make_model(folder, content):
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    return folder


def detloom(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.mark.parametrize("command", ["push", "versions", "rollback", "verify"])
def test_help_says_what_it_does(command):
    result = detloom(command, "--help")
    assert result.exit_code == 0
    assert f"cli {command} " in result.output


def test_a_push_by_hand_is_recorded_with_its_reason(tmp_path):
    model = make_model(tmp_path / "model", b"1")
    result = detloom("push", model, "--to", tmp_path / "serving", "--reason", "first one")
    (version,) = list_versions(tmp_path / "serving")
    assert result.output == f"Pushed version {version}: {tmp_path}/serving/{version}\n"
    (record,) = read_records(tmp_path / "serving")
    assert (record["reason"], record["model_uri"], record["blessing"]) == ("by hand: first one", str(model), {})
    again = detloom("push", model, "--to", tmp_path / "serving", "--reason", "again")
    assert again.output.startswith(f"Nothing to do: version {version} is this model already")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "http://x/y", "--reason", "x"), "http://x/y: allowed: a folder, or an address of gs://"),
        (("--to", "s", "--reason", " "), "--reason: got nothing"),
        (("--to", "s", "--reason", "x", "--keep-versions", "1"), "keep_versions: got 1, allowed: 0"),
        (("--to", "s", "--reason", "x", "--card", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_mistakes_of_a_push_are_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in str(detloom("push", make_model(tmp_path / "model", b"1"), *arguments).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_versions_are_a_table(serving):
    (serving / "200" / "saved_model.pb").write_bytes(b"3")
    make_model(serving / "50", b"somebody else's")
    result = detloom("versions", serving)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[:4] == [
        ["version", "pushed", "by", "action", "blessed", "AP", "files"],
        ["50", "-", "-", "-", "-", "-", "no", "manifest"],
        ["100", "1970-01-01T00:01:40+00:00", "ann", "push", "yes", "0.432", "intact"],
        ["200", "1970-01-01T00:03:20+00:00", r"b\x1b[1mob", "push", "by", "hand", "-", "damaged", "served"],
    ]
    assert "version 200: saved_model.pb: has another content than the manifest says" in result.output


def test_versions_are_json_when_asked_for(serving):
    states = json.loads(detloom("versions", serving, "--json").output)
    assert [(state["version"], state["is_served"], state["is_intact"]) for state in states] == [
        (100, False, True),
        (200, True, True),
    ]
    assert (states[0]["run_id"], states[0]["metrics"]) == ("run-1", {"AP": 0.4321})


def test_an_empty_folder_has_no_versions_and_a_missing_one_is_refused(tmp_path):
    assert detloom("versions", tmp_path).output == f"{tmp_path}: no versions.\n"
    assert "nowhere: no such folder" in str(detloom("versions", tmp_path / "nowhere").exception)


def test_a_rollback_says_what_it_replaces_and_shows_in_the_table(serving):
    result = detloom("rollback", serving, "--reason", "bad boxes")
    new = list_versions(serving)[-1]
    assert result.output == f"Version {new} replaces 200: {serving}/{new}\n"
    row = detloom("versions", serving).output.splitlines()[-1]
    assert "rollback to 100" in row
    assert row.endswith("served")
    assert detloom("rollback", serving).exit_code == 2  # no reason


def test_a_rollback_can_remove_the_bad_version(serving):
    detloom("rollback", serving, "--to", 100, "--remove-bad", "--reason", "bad boxes")
    assert 200 not in list_versions(serving)


def test_verify_takes_a_version_or_a_folder_of_them_and_fails_with_the_bad_files(serving):
    assert detloom("verify", serving).output == "version 100: intact\nversion 200: intact\n"
    (serving / "100" / "saved_model.pb").unlink()
    (serving / "100" / "more").write_text("x")
    result = detloom("verify", serving / "100")
    assert result.exit_code == 1
    assert result.output == "version 100: more: is not in the manifest\nversion 100: saved_model.pb: is missing\n"
    assert detloom("verify", serving).exit_code == 1
    assert detloom("verify", serving / "200").exit_code == 0


def test_verify_of_what_is_no_version_is_refused(tmp_path):
    assert "is no version and holds none" in str(detloom("verify", tmp_path).exception)


def test_a_full_disk_is_one_sentence(serving, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("detloom.components.pusher.folder.shutil.copyfile", refuse)
    result = detloom("push", make_model(tmp_path / "third", b"3"), "--to", serving, "--reason", "x")
    assert str(result.exception).endswith(
        "nothing was changed (No space left on device); put that right and try again."
    )
    assert list_versions(serving) == [100, 200]


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_a_storage_that_does_not_answer_is_one_sentence(command, serving, monkeypatch):
    def fail(self):
        raise OSError(5, "the storage is not available")

    monkeypatch.setattr("detloom.components.pusher.folder.Folder.names", fail)
    result = detloom(command, serving)
    message = f"{serving}: cannot be read (the storage is not available); put that right and try again."
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == message


def test_verify_of_the_root_folder_is_not_that_of_the_current_one(serving, monkeypatch):
    monkeypatch.chdir(serving)
    assert str(detloom("verify", "/").exception) == "/: is no version and holds none."


def test_a_time_to_wait_that_is_no_number_is_refused(serving):
    result = detloom("rollback", serving, "--reason", "x", "--wait", "nan")
    assert result.exit_code == 2
    assert list_versions(serving) == [100, 200]
