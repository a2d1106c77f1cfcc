import os
import shutil
from pathlib import Path

import pytest
import tiny_onnx
from pushes import push, roll_back_at

from detloom.components.pusher import push_to_folder
from detloom.components.pusher.manifest import MANIFEST_FILE, RECORD_FILE, Origin, build_manifest
from detloom.components.pusher.push import NotPushedError, list_versions, read_records
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.model_files import read_evaluated_forms


@pytest.fixture
def three_versions(model, other_model, third_model, tmp_path):
    for at, each in enumerate((model, other_model, third_model), start=1):
        push(each, tmp_path / "serving", at=float(at))


def refuse(self, line):
    raise OSError(28, "No space left on device")


def test_version_number_is_the_time_and_version_contains_model_and_manifest(model, read_manifest, tmp_path):
    result = push(model, tmp_path / "serving", at=1234.9)
    assert (result.version, result.is_new, result.previous_version) == (1234, True, None)
    assert result.path == tmp_path / "serving" / "1234"
    names = sorted(path.relative_to(result.path).as_posix() for path in result.path.rglob("*") if path.is_file())
    assert names == [MANIFEST_FILE, "assets/label_map.pbtxt", "saved_model.pb", "variables/variables.index"]
    assert read_manifest(result.path).files == build_manifest(model).files


@pytest.mark.reliability("clock jump", "push")
def test_version_numbers_increase_even_if_the_clock_goes_back(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1000.0)
    result = push(other_model, tmp_path / "serving", at=500.0)
    assert (result.version, result.previous_version) == (1001, 1000)


def test_pushing_the_latest_model_again_changes_nothing_but_an_earlier_one_makes_a_new_version(
    model, other_model, tmp_path
):
    push(model, tmp_path / "serving", at=1000.0)
    result = push(model, tmp_path / "serving", at=2000.0, check=lambda folder: pytest.fail("loaded"))
    assert (result.version, result.is_new) == (1000, False)
    assert list_versions(tmp_path / "serving") == [1000]
    assert len(read_records(tmp_path / "serving")) == 1
    push(other_model, tmp_path / "serving", at=3000.0)
    assert push(model, tmp_path / "serving", at=4000.0).version == 4000


@pytest.mark.reliability("torn file", "push")
def test_damaged_latest_version_is_pushed_again(model, tmp_path):
    first = push(model, tmp_path / "serving", at=1000.0)
    (first.path / "saved_model.pb").write_bytes(b"grapX")
    result = push(model, tmp_path / "serving", at=2000.0)
    assert (result.version, result.is_new) == (2000, True)


def test_version_without_manifest_is_kept(make_model, model, tmp_path):
    make_model(tmp_path / "serving" / "9999")
    assert push(model, tmp_path / "serving", at=1.0).version == 10000
    assert list_versions(tmp_path / "serving") == [9999, 10000]


def test_each_push_writes_one_record_line_and_repeats_it_in_the_manifest(model, other_model, read_manifest, tmp_path):
    push(model, tmp_path / "serving", at=60.0)
    second = push(other_model, tmp_path / "serving", at=3600.0)
    records = read_records(tmp_path / "serving")
    assert [record["previous_version"] for record in records] == [None, 60]
    assert records[1] == {
        "time": "1970-01-01T01:00:00+00:00",
        "action": "push",
        "version": 3600,
        "previous_version": 60,
        "of_version": None,
        "model_uri": "uri of other_model",
        "manifest_sha256": build_manifest(other_model).digest,
        "identity": build_manifest(other_model).identity,
        "by": "ann",
        "host": "laptop",
        "run_id": "",
        "reason": "",
        "blessing": {},
        "metrics": {},
    }
    assert read_manifest(second.path).push == records[1]


def test_rolled_back_model_that_was_trained_again_is_recognized(model, other_model, tmp_path):
    serving = tmp_path / "serving"
    tiny_onnx.write_tiny_onnx(other_model)
    push(model, serving, at=1.0)
    push(other_model, serving, at=2.0)
    roll_back_at(serving, 3.0)
    (other_model / "saved_model.pb").write_bytes(b"the same graph with other names")
    tiny_onnx.write_tiny_onnx(other_model, graph_name="the same with another name")
    with pytest.raises(NotPushedError):
        push(other_model, serving, at=4.0, allow_rolled_back=False)
    (other_model / "variables" / "variables.index").write_bytes(b"other weights")
    assert push(other_model, serving, at=5.0, allow_rolled_back=False).is_new


@pytest.mark.reliability("full disk", "push")
def test_missing_record_line_is_written_by_the_next_push(model, other_model, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(push_to_folder.PushFolder, "append_record", refuse)
        assert push(model, tmp_path / "serving", at=1.0).is_new
    assert "push_record.jsonl" in caplog.text
    assert "No space left on device" in caplog.text
    push(other_model, tmp_path / "serving", at=2.0)
    assert [record["version"] for record in read_records(tmp_path / "serving")] == [1, 2]


@pytest.mark.reliability("torn file", "push")
def test_truncated_record_line_does_not_affect_the_next_line(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    with open(tmp_path / "serving" / RECORD_FILE, "a") as file:
        file.write('{"version": 2, "mod')
    push(other_model, tmp_path / "serving", at=3.0)
    assert [record["version"] for record in read_records(tmp_path / "serving")] == [1, 3]


@pytest.mark.reliability("torn file", "push")
def test_copy_that_differs_from_the_original_is_not_published(model, other_model, tmp_path, monkeypatch):
    push(model, tmp_path / "serving", at=1.0)

    def copy_badly(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:-1] + b"?")

    with monkeypatch.context() as patch:
        patch.setattr(push_to_folder.shutil, "copyfile", copy_badly)
        with pytest.raises(OSError, match=r"assets/label_map\.pbtxt"):
            push(other_model, tmp_path / "serving", at=2.0)
    assert list_versions(tmp_path / "serving") == [1]
    assert not list((tmp_path / "serving").glob(".push-*"))
    assert push(other_model, tmp_path / "serving", at=2.0).is_new


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: (model / "saved_model.pb").unlink(), r"model: .*saved_model\.pb"),
        (lambda model: (model.parent / "serving").write_text(""), "serving: "),
        (lambda model: (model / "assets/more").symlink_to("/etc/hostname"), "assets/more: "),
        (lambda model: os.mkfifo(model / "assets/pipe"), "assets/pipe: "),
        (lambda model: (model.parent / "card/model_card.md").symlink_to("/etc/hostname"), r"card/model_card\.md: "),
    ],
    ids=["no model", "file", "link", "pipe", "link in card"],
)
def test_files_that_cannot_be_pushed_are_refused(change, message, model, tmp_path):
    (tmp_path / "card").mkdir()
    change(model)
    with pytest.raises(InputError, match=message):
        push(model, tmp_path / "serving", card_dir=tmp_path / "card")
    assert not (tmp_path / "serving/1000").exists()


def test_settings_that_cannot_be_used_are_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"keep_versions: got 1, allowed: 0 .* 2 "):
        push(model, tmp_path / "serving", keep_versions=1)
    with pytest.raises(InputError, match="model/serving: "):
        push(model, model / "serving")
    assert not (model / "serving").exists()


def test_model_pushed_from_a_version_folder_has_the_same_digest(model, tmp_path):
    first = push(model, tmp_path / "a")
    shutil.copytree(first.path, tmp_path / "copy")
    assert push(tmp_path / "copy", tmp_path / "b").digest == first.digest


def test_only_names_that_a_server_accepts_are_versions(make_model, tmp_path):
    for name in ("7", "007", "٣", "7a", ".push-8"):
        make_model(tmp_path / "serving" / name)
    assert list_versions(tmp_path / "serving") == [7]


def test_copy_that_fails_the_load_check_is_removed_and_the_served_version_is_kept(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    seen = []

    def refuse(folder):
        seen.append((folder.name, (folder / "saved_model.pb").read_bytes()))
        raise InputError("it does not load")

    with pytest.raises(InputError, match="it does not load"):
        push(other_model, tmp_path / "serving", at=2.0, check=refuse)
    assert seen == [(".push-2", b"another graph")]
    assert sorted(path.name for path in (tmp_path / "serving").iterdir()) == [".push.lock", "1", RECORD_FILE]


def test_model_card_is_copied_and_a_changed_card_alone_makes_no_new_version(model, read_manifest, tmp_path):
    card = tmp_path / "card"
    card.mkdir()
    (card / "model_card.md").write_text("# Cells")
    (card / "notes.txt").write_text("not a card")
    first = push(model, tmp_path / "serving", at=1.0, card_dir=card)
    assert (first.path / "assets.extra" / "model_card.md").read_text() == "# Cells"
    assert not (first.path / "assets.extra" / "notes.txt").exists()
    assert "assets.extra/model_card.md" in read_manifest(first.path).files
    assert first.digest == build_manifest(model).digest
    (card / "model_card.md").write_text("# Cells, again")
    assert not push(model, tmp_path / "serving", at=2.0, card_dir=card).is_new
    assert (first.path / "assets.extra" / "model_card.md").read_text() == "# Cells"


def test_versions_beyond_keep_versions_are_removed(make_model, model, other_model, third_model, tmp_path):
    make_model(tmp_path / "serving" / "5")  # not pushed by detloom
    for at, each in enumerate((model, other_model, third_model, model), start=10):
        push(each, tmp_path / "serving", at=float(at), keep_versions=2)
    assert list_versions(tmp_path / "serving") == [5, 12, 13]
    assert not list((tmp_path / "serving").glob(".trash-*"))


def test_rollback_copies_the_previous_version_under_a_higher_number(model, other_model, tmp_path):
    blessing = {"id": 5, "blessed": True, "forms": ["saved_model", "onnx"]}
    push(model, tmp_path / "serving", at=1.0, origin=Origin(model_uri="m", blessing=blessing, metrics={"AP": 0.5}))
    push(other_model, tmp_path / "serving", at=2.0)
    result = roll_back_at(tmp_path / "serving", 3.0)
    assert (result.version, result.previous_version, result.is_new) == (3, 2, True)
    assert (result.path / "saved_model.pb").read_bytes() == b"graph"
    assert list_versions(tmp_path / "serving") == [1, 2, 3]
    record = read_records(tmp_path / "serving")[-1]
    expected = {"action": "rollback", "of_version": 1, "previous_version": 2, "reason": "bad boxes", "model_uri": "m"}
    assert expected.items() <= record.items()
    assert (record["blessing"], record["metrics"]) == (blessing, {"AP": 0.5})
    assert read_evaluated_forms(str(result.path)) == ("saved_model", "onnx")


@pytest.mark.usefixtures("three_versions")
def test_second_rollback_skips_the_models_that_were_rolled_back(model, other_model, third_model, tmp_path):
    assert roll_back_at(tmp_path / "serving", 4.0).digest == build_manifest(other_model).digest
    assert roll_back_at(tmp_path / "serving", 5.0).digest == build_manifest(model).digest
    with pytest.raises(InputError, match=r"version 5\b.*--to"):
        roll_back_at(tmp_path / "serving", 6.0)
    assert roll_back_at(tmp_path / "serving", 7.0, to=3).digest == build_manifest(third_model).digest


@pytest.mark.reliability("torn file", "rollback")
@pytest.mark.usefixtures("three_versions")
def test_damaged_version_is_not_restored(model, tmp_path):
    (tmp_path / "serving" / "2" / "saved_model.pb").write_bytes(b"another grapX")
    with pytest.raises(InputError, match=r"serving/2: .*saved_model\.pb"):
        roll_back_at(tmp_path / "serving", 4.0, to=2)
    assert list_versions(tmp_path / "serving") == [1, 2, 3]
    assert roll_back_at(tmp_path / "serving", 4.0).digest == build_manifest(model).digest


def test_rollback_to_the_served_model_changes_nothing(model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    assert not roll_back_at(tmp_path / "serving", 2.0, to=1).is_new


def test_rollback_to_a_missing_version_names_the_allowed_ones(make_model, model, tmp_path):
    make_model(tmp_path / "serving" / "1")  # without a manifest
    push(model, tmp_path / "serving", at=2.0)
    for version in (1, 9):
        with pytest.raises(InputError, match=rf"version {version} .* allowed: 2\."):
            roll_back_at(tmp_path / "serving", 3.0, to=version)


def test_rollback_removes_the_replaced_version_only_on_request(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    push(other_model, tmp_path / "serving", at=2.0)
    roll_back_at(tmp_path / "serving", 3.0, remove_replaced=True)
    assert list_versions(tmp_path / "serving") == [1, 3]


@pytest.mark.reliability("torn file", "push")
@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"files": {"a": 3}}', '{"files": {"a": {"bytes": 1e999, "sha256": ""}}}', "[" * 100_000]
)
def test_invalid_manifest_is_treated_as_missing(text, model, read_manifest, tmp_path):
    result = push(model, tmp_path / "serving")
    (result.path / MANIFEST_FILE).write_text(text)
    assert read_manifest(result.path) is None


@pytest.mark.reliability("clock jump", "push")
def test_numbers_of_deleted_versions_are_not_used_again(model, other_model, third_model, tmp_path):
    push(model, tmp_path / "serving", at=1000.0)
    second = push(other_model, tmp_path / "serving", at=1000.0)
    shutil.rmtree(second.path)
    assert push(third_model, tmp_path / "serving", at=500.0).version == 1002


def test_files_and_numbers_with_leading_zeros_count_for_the_next_version(model, tmp_path):
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "3000").write_text("")
    (tmp_path / "serving" / "0004000").mkdir()
    assert push(model, tmp_path / "serving", at=1000.0).version == 4001
    assert list_versions(tmp_path / "serving") == [4001]


@pytest.mark.reliability("full disk", "rollback")
@pytest.mark.usefixtures("three_versions")
def test_rollback_without_a_record_line_is_known_from_its_manifest(model, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(push_to_folder.PushFolder, "append_record", refuse)
        roll_back_at(tmp_path / "serving", 4.0)
    again = roll_back_at(tmp_path / "serving", 5.0)  # not to the third model, the newest of another content
    assert again.digest == build_manifest(model).digest


def test_model_that_was_restored_later_can_be_chosen_again(model, other_model, third_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    push(other_model, tmp_path / "serving", at=2.0)
    roll_back_at(tmp_path / "serving", 3.0)
    roll_back_at(tmp_path / "serving", 4.0, to=2)
    push(third_model, tmp_path / "serving", at=5.0)
    assert roll_back_at(tmp_path / "serving", 6.0).digest == build_manifest(other_model).digest


def test_last_version_that_a_rollback_could_restore_is_kept(model, other_model, tmp_path):
    push(model, tmp_path / "serving", at=1.0)
    second = push(other_model, tmp_path / "serving", at=2.0)
    (second.path / "saved_model.pb").write_bytes(b"damaged")
    push(other_model, tmp_path / "serving", at=3.0, keep_versions=2)
    assert list_versions(tmp_path / "serving") == [1, 2, 3]
    assert roll_back_at(tmp_path / "serving", 4.0).digest == build_manifest(model).digest


def test_versions_copied_from_elsewhere_are_neither_counted_nor_removed(model, other_model, third_model, tmp_path):
    elsewhere = push(third_model, tmp_path / "elsewhere", at=7.0)
    shutil.copytree(elsewhere.path, tmp_path / "serving" / "1")
    for at, each in enumerate((model, other_model, model), start=10):
        push(each, tmp_path / "serving", at=float(at), keep_versions=2)
    assert list_versions(tmp_path / "serving") == [1, 11, 12]


@pytest.mark.reliability("read-only", "push")
def test_unwritable_record_does_not_fail_later_pushes(model, other_model, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(push_to_folder.PushFolder, "append_record", refuse)
    push(model, tmp_path / "serving", at=1.0)
    assert push(other_model, tmp_path / "serving", at=2.0).is_new
    assert "the line for version 1" in caplog.text


def test_record_contains_no_user_info_and_no_nan(model, tmp_path):
    origin = Origin(model_uri="s3://key:s@cret@bucket/m@1", metrics={"AP": float("nan"), "AP50": 0.5})
    push(model, tmp_path / "serving", origin=origin)
    (record,) = read_records(tmp_path / "serving")
    assert (record["model_uri"], record["metrics"]) == ("s3://(hidden)@bucket/m@1", {"AP50": 0.5})
