import pytest

from detloom.components.examples_folder import ExamplesFolder, list_shards
from detloom.schemas.errors import InputError


def test_only_shards_are_listed_and_names_are_not_patterns(tmp_path):
    folder = tmp_path / "Split-a[b]*"
    folder.mkdir()
    for name in ("data_tfrecord-00001-of-00002", "data_tfrecord-00000-of-00002.gz", "README.md"):
        (folder / name).touch()
    expected = ["data_tfrecord-00000-of-00002.gz", "data_tfrecord-00001-of-00002"]
    assert ExamplesFolder(tmp_path).check_shards("a[b]*") == [f"{folder}/{name}" for name in expected]
    assert list_shards(tmp_path / "gone") == []


def test_only_folders_of_splits_are_splits(tmp_path):
    for name in ("Split-b", "Split-a", "Split", ".incomplete"):
        (tmp_path / name).mkdir()
    (tmp_path / "Split-file").touch()
    assert ExamplesFolder(str(tmp_path)).check_splits("a", "b") == ["a", "b"]


def test_a_missing_folder_split_or_shard_is_refused(tmp_path):
    for folder, what in ((tmp_path / "gone", "does not exist"), (tmp_path, "Split-NAME")):
        assert ExamplesFolder(folder).list_splits() == []
        with pytest.raises(InputError, match=f"{folder}.*{what}"):
            ExamplesFolder(folder).check_splits()
    (tmp_path / "Split-a").mkdir()
    with pytest.raises(InputError, match=r"'b', allowed: a\."):
        ExamplesFolder(tmp_path).check_splits("a", "b")
    with pytest.raises(InputError, match=r"Split-a: .* data_tfrecord-"):
        ExamplesFolder(tmp_path).check_shards("a")
