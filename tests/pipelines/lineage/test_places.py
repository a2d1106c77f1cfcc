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


def test_a_versions_folder_is_enough_in_a_workspace(workspace):
    places = find_places(f"{workspace}/serving/7/")
    assert (places.version, places.push_dir) == (7, str(workspace / "serving"))
    assert places.metadata_file == workspace / "metadata.sqlite"


def test_a_version_that_was_deleted_is_still_named_by_its_folder(workspace):
    assert find_places(f"{workspace}/serving/6").version == 6


def test_a_number_goes_with_a_workspace_or_a_push_folder(workspace):
    expected = find_places(f"{workspace}/serving/7")
    assert find_places("7", workspace=workspace) == expected
    assert find_places("7", push_dir=str(workspace / "serving")) == expected


def test_a_number_is_looked_for_here(workspace, monkeypatch):
    monkeypatch.chdir(workspace / "serving")
    assert find_places("7").push_dir == str(workspace / "serving")


def test_a_run_file_says_where_both_lie_though_its_data_are_gone(workspace, tmp_path):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "name: digits\nworkspace: runs/digits\n"
        "data: {path: 'gone/{SPAN}', num_spans: 2, split_by_ratio: {train: 0.8, eval: 0.1, test: 0.1}}\n"
    )
    places = find_places("7", run_file=run_file)
    assert places.push_dir == str(workspace / "serving")
    assert places.metadata_file == workspace / "metadata.sqlite"


def test_metadata_may_lie_anywhere(workspace, tmp_path):
    assert find_places(f"{workspace}/serving/7", metadata=tmp_path / "copy").metadata_file == tmp_path / "copy"


def test_a_bucket_needs_a_workspace(workspace):
    places = find_places("gs://models/digits/7", workspace=workspace)
    assert (places.version, places.push_dir) == (7, "gs://models/digits")
    with pytest.raises(InputError, match=r"gs://models/digits: no metadata\.sqlite.*give --workspace"):
        find_places("gs://models/digits/7")
    with pytest.raises(InputError, match="ftp://models: allowed for pushed versions: a folder, or an address of gs://"):
        find_places("ftp://models/7")


@pytest.mark.parametrize("version", ["latest", "7a", "", "٧", "-7", "9" * 19, "a\nb", "07", "serving/"])
def test_what_is_no_number_is_refused(version):
    with pytest.raises(InputError, match="allowed: the folder of a pushed version, whose name is a number"):
        find_places(version)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no push_record\.jsonl is there.*--push-dir or --workspace"):
        find_places(str(tmp_path / "7"))


def test_metadata_that_are_not_beside_are_asked_for(workspace):
    (workspace / "metadata.sqlite").unlink()
    with pytest.raises(InputError, match=r"no metadata\.sqlite lies beside this folder; give --workspace"):
        find_places(str(Path(workspace) / "serving" / "7"))
