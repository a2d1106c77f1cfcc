import json

import pytest
from command_line import detloom_command as detloom
from command_line import sentence

from detloom.components.pusher import push as pusher_push
from detloom.components.pusher.manifest import MANIFEST_FILE, Origin
from detloom.components.pusher.push import list_versions, push_model, read_records
from detloom.components.pusher.push_to_folder import PushFolder


@pytest.fixture(autouse=True)
def skip_load_check(monkeypatch):
    """Accept every copy, because these models have no graph."""
    for function in (pusher_push.push_model, pusher_push.roll_back):
        monkeypatch.setitem(function.__kwdefaults__, "check", lambda folder: None)


@pytest.fixture
def serving(tmp_path):
    """Return a push folder with version 100, blessed, and version 200, pushed manually."""
    origin = Origin(model_uri="m", by="ann", run_id="run-1", blessing={"blessed": True}, metrics={"AP": 0.4321})
    push_model(make_model(tmp_path / "first", b"1"), tmp_path / "serving", origin=origin, now=lambda: 100.0)
    by_hand = Origin(model_uri="n", by="b\x1b[1mob")
    push_model(make_model(tmp_path / "second", b"2"), tmp_path / "serving", origin=by_hand, now=lambda: 200.0)
    return tmp_path / "serving"


def make_model(folder, content):
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(content)
    return folder


def test_manual_push_is_recorded_with_its_reason(tmp_path):
    model = make_model(tmp_path / "model", b"1")
    result = detloom("push", model, "--to", tmp_path / "serving", "--reason", "first one")
    (version,) = list_versions(tmp_path / "serving")
    pushed, no_card, next_line = result.output.splitlines()
    assert pushed == f"Pushed version {version}: {tmp_path}/serving/{version}"
    assert no_card.startswith("It has no model card")
    assert next_line == f"Next: detloom serve {tmp_path}/serving"
    (record,) = read_records(tmp_path / "serving")
    assert (record["reason"], record["model_uri"], record["blessing"]) == ("by hand: first one", str(model), {})
    again = detloom("push", model, "--to", tmp_path / "serving", "--reason", "again")
    assert again.output.startswith(f"Nothing to do: version {version} ")
    (model / "assets.extra").mkdir()
    (model / "assets.extra" / "model_card.json").write_text("{}")
    assert "no model card" not in detloom("push", model, "--to", tmp_path / "elsewhere", "--reason", "x").output


@pytest.mark.parametrize(
    ("card", "AP"),
    [
        ('{"evaluation": {"metrics": {"AP": {"value": 0.51}, "AP50": {"value": 0.8}}}}', "0.510"),
        ("{}", "-"),
        ("[", "-"),
    ],
)
def test_the_list_of_versions_shows_the_ap_of_a_card(tmp_path, card, AP):
    (tmp_path / "card").mkdir()
    (tmp_path / "card/model_card.json").write_text(card)
    model, push_dir = make_model(tmp_path / "model", b"1"), tmp_path / "serving"
    pushed = detloom("push", model, "--to", push_dir, "--card", tmp_path / "card", "--reason", "x")
    assert pushed.exit_code == 0, pushed.output
    assert f"  by hand  {AP}" in detloom("versions", push_dir).output


@pytest.mark.parametrize("has_label_map", [True, False])
def test_a_model_with_other_classes_or_none_is_refused_without_a_flag(tmp_path, has_label_map):
    folder, models = tmp_path / "serving", [make_model(tmp_path / name, name.encode()) for name in ("cats", "dogs")]
    for model in models if has_label_map else models[:1]:
        (model / "assets").mkdir()
        (model / "assets" / "label_map.pbtxt").write_text(f"item {{ id: 1 name: '{model.name}' }}")
    arguments = ("--to", folder, "--reason", "x")
    detloom("push", models[0], *arguments)
    refused = detloom("push", models[1], *arguments)
    assert "--allow-class-change" in sentence(refused)
    assert len(list_versions(folder)) == 1
    assert detloom("push", models[1], *arguments, "--allow-class-change").exit_code == 0
    assert len(list_versions(folder)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "http://x/y", "--reason", "x"), "http://x/y: allowed: "),
        (("--to", "s", "--reason", " "), "--reason: "),
        (("--to", "s", "--reason", "x", "--keep-versions", "1"), "keep_versions: got 1, allowed: "),
        (("--to", "s", "--reason", "x", "--card", "nowhere"), "nowhere: "),
    ],
)
def test_invalid_arguments_of_push_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in str(detloom("push", make_model(tmp_path / "model", b"1"), *arguments).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_versions_prints_a_table(serving):
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
    assert "version 200: saved_model.pb: " in result.output


def test_versions_prints_json(serving):
    first, second = json.loads(detloom("versions", serving, "--json").output)
    assert (first["version"], first["is_served"], first["is_intact"]) == (100, False, True)
    assert (second["version"], second["is_served"], second["is_intact"]) == (200, True, True)
    assert (first["run_id"], first["metrics"]) == ("run-1", {"AP": 0.4321})


@pytest.mark.parametrize("number", ["1" * 400, "-" + "1" * 400, "NaN", "1e999", "true", '"0.5"'])
def test_versions_prints_no_metric_that_is_not_a_finite_number(serving, number):
    manifest = serving / "100" / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace("0.4321", number))
    result = detloom("versions", serving)
    assert result.exit_code == 0, result.exception
    assert result.output.splitlines()[-2].split()[-2:] == ["-", "intact"]


def test_folders_without_versions(serving, tmp_path, monkeypatch):
    assert detloom("versions", tmp_path / "first").output == f"{tmp_path}/first: no versions.\n"
    assert "nowhere: " in str(detloom("versions", tmp_path / "nowhere").exception)
    assert str(detloom("verify", tmp_path).exception).startswith(f"{tmp_path}: ")
    monkeypatch.chdir(serving)  # which is not used
    assert str(detloom("verify", "/").exception).startswith("/: ")
    for command in ("versions", "verify"):
        assert sentence(detloom(command, ""))


def test_versions_of_a_missing_folder_in_a_bucket_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "detloom.components.pusher.manual_push.open_destination", lambda _: PushFolder(tmp_path / "none")
    )
    assert "gs://bucket/none: " in str(detloom("versions", "gs://bucket/none").exception)


def test_rollback_prints_the_replaced_version_and_appears_in_the_table(serving):
    result = detloom("rollback", serving, "--reason", "bad boxes")
    new = list_versions(serving)[-1]
    replaced, restart, next_line = result.output.splitlines()
    assert "`detloom serve`" in restart
    assert replaced == f"Version {new} replaces 200: {serving}/{new}"
    assert next_line == f"Next: detloom versions {serving}"
    row = detloom("versions", serving).output.splitlines()[-1]
    assert "rollback to 100" in row
    assert row.endswith("served")
    assert detloom("rollback", serving).exit_code == 2  # no reason


def test_rollback_removes_the_bad_version_and_refuses_a_wait_that_is_not_a_number(serving):
    result = detloom("rollback", serving, "--reason", "x", "--wait", "nan")
    assert result.exit_code == 2
    assert list_versions(serving) == [100, 200]
    detloom("rollback", serving, "--to", 100, "--remove-bad", "--reason", "bad boxes")
    assert 200 not in list_versions(serving)


def test_verify_reports_changed_files_of_a_version_or_folder(serving):
    assert detloom("verify", serving).output == "version 100: intact\nversion 200: intact\n"
    (serving / "100" / "saved_model.pb").unlink()
    (serving / "100" / "more").write_text("x")
    result = detloom("verify", serving / "100")
    assert result.exit_code == 1
    assert result.output == "version 100: more: is not in the manifest\nversion 100: saved_model.pb: is missing\n"
    assert detloom("verify", serving).exit_code == 1
    assert detloom("verify", serving / "200").exit_code == 0
    found = json.loads(detloom("verify", serving, "--json").output)
    assert [(row["version"], row["intact"]) for row in found] == [(100, False), (200, True)]
    assert found[0]["problems"] == ["more: is not in the manifest", "saved_model.pb: is missing"]


@pytest.mark.reliability("full disk", "push")
def test_full_disk_is_reported_and_nothing_changes(serving, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("detloom.components.pusher.push_to_folder.shutil.copyfile", refuse)
    result = detloom("push", make_model(tmp_path / "third", b"3"), "--to", serving, "--reason", "x")
    assert "(No space left on device)" in str(result.exception)
    assert list_versions(serving) == [100, 200]


@pytest.mark.parametrize("command", ["versions", "verify"])
def test_storage_error_is_reported_with_the_folder(command, serving, monkeypatch):
    def fail(self):
        raise OSError(5, "the storage is not available")

    monkeypatch.setattr("detloom.components.pusher.push_to_folder.PushFolder.names", fail)
    error = sentence(detloom(command, serving))
    assert error.startswith(f"{serving}: ")
    assert "(the storage is not available)" in error
