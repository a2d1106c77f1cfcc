import pytest

from detloom.pipelines.lineage.find_version import find_version
from detloom.schemas.errors import InputError


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "runs" / "digits"
    (folder / "serving" / "7").mkdir(parents=True)
    (folder / "serving" / "push_record.jsonl").write_text("")
    (folder / "metadata.sqlite").write_text("")
    return folder


def test_a_version_is_a_folder_or_a_number_in_the_current_folder_or_a_workspace(workspace, monkeypatch):
    source = find_version(f"{workspace}/serving/7/")
    assert (source.version, source.push_dir) == (7, str(workspace / "serving"))
    assert source.metadata_file == workspace / "metadata.sqlite"
    assert find_version(f"{workspace}/serving/6").version == 6  # deleted
    assert find_version("7", workspace) == source
    monkeypatch.chdir(workspace / "serving")
    assert find_version("7").push_dir == str(workspace / "serving")


def test_workspace_can_be_elsewhere(workspace, tmp_path):
    source = find_version(f"{workspace}/serving/7", tmp_path)
    assert (source.push_dir, source.metadata_file) == (str(workspace / "serving"), tmp_path / "metadata.sqlite")


def test_remote_push_folder_needs_a_workspace(workspace):
    source = find_version("gs://models/digits/7", workspace)
    assert (source.version, source.push_dir) == (7, "gs://models/digits")
    with pytest.raises(InputError, match=r"gs://models/digits: .*metadata\.sqlite.*--workspace"):
        find_version("gs://models/digits/7")


@pytest.mark.parametrize("version", ["latest", "7a", "", "٧", "-7", "9" * 19, "a\nb", "07", "serving/"])
def test_version_that_is_not_a_number_is_refused(version):
    with pytest.raises(InputError, match=r"got .*, allowed: .*number"):
        find_version(version)


def test_a_folder_without_a_push_record_or_metadata_is_refused(workspace, tmp_path):
    with pytest.raises(InputError, match=r"push_record\.jsonl.*--workspace"):
        find_version(str(tmp_path / "7"))
    (workspace / "metadata.sqlite").unlink()
    with pytest.raises(InputError, match=r"serving: no metadata\.sqlite .*--workspace"):
        find_version(f"{workspace}/serving/7")
