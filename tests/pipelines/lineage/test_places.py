from pathlib import Path

import pytest

from detloom.pipelines.lineage.places import find_places
from detloom.schemas.errors import InputError


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "runs" / "digits"
    (folder / "serving" / "7").mkdir(parents=True)
    (folder / "serving" / "push_record.jsonl").write_text("")
    (folder / "metadata.sqlite").write_text("")
    return folder


def test_folder_of_a_version_in_a_workspace_is_enough(workspace):
    places = find_places(f"{workspace}/serving/7/")
    assert (places.version, places.push_dir) == (7, str(workspace / "serving"))
    assert places.metadata_file == workspace / "metadata.sqlite"


def test_folder_of_a_deleted_version_is_accepted(workspace):
    assert find_places(f"{workspace}/serving/6").version == 6


def test_number_needs_a_workspace_or_a_push_folder(workspace):
    expected = find_places(f"{workspace}/serving/7")
    assert find_places("7", workspace=workspace) == expected
    assert find_places("7", push_dir=str(workspace / "serving")) == expected


def test_number_alone_refers_to_the_current_folder(workspace, monkeypatch):
    monkeypatch.chdir(workspace / "serving")
    assert find_places("7").push_dir == str(workspace / "serving")


def test_run_file_with_missing_data_gives_workspace_and_push_folder(workspace, tmp_path):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "name: digits\nworkspace: runs/digits\n"
        "data: {path: 'gone/{SPAN}', num_spans: 2, split_by_ratio: {train: 0.8, eval: 0.1, test: 0.1}}\n"
    )
    places = find_places("7", run_file=run_file)
    assert places.push_dir == str(workspace / "serving")
    assert places.metadata_file == workspace / "metadata.sqlite"


def test_metadata_file_can_be_given(workspace, tmp_path):
    assert find_places(f"{workspace}/serving/7", metadata=tmp_path / "copy").metadata_file == tmp_path / "copy"


def test_remote_push_folder_needs_a_workspace(workspace):
    places = find_places("gs://models/digits/7", workspace=workspace)
    assert (places.version, places.push_dir) == (7, "gs://models/digits")
    with pytest.raises(InputError, match=r"gs://models/digits: .*metadata\.sqlite.*--workspace"):
        find_places("gs://models/digits/7")
    with pytest.raises(InputError, match=r"ftp://models: allowed.*gs://"):
        find_places("ftp://models/7")


@pytest.mark.parametrize("version", ["latest", "7a", "", "٧", "-7", "9" * 19, "a\nb", "07", "serving/"])
def test_version_that_is_not_a_number_is_refused(version):
    with pytest.raises(InputError, match=r"got .*, allowed: .*number"):
        find_places(version)


def test_folder_without_a_push_record_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"push_record\.jsonl.*--push-dir or --workspace"):
        find_places(str(tmp_path / "7"))


def test_missing_metadata_is_refused(workspace):
    (workspace / "metadata.sqlite").unlink()
    with pytest.raises(InputError, match=r"serving: no metadata\.sqlite .*--workspace"):
        find_places(str(Path(workspace) / "serving" / "7"))
