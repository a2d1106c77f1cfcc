import shutil
import sqlite3

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage import metadata_file
from detloom.pipelines.lineage.metadata_file import check_metadata_file
from detloom.schemas.errors import InputError


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "metadata.sqlite"
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(path)
    store = mlmd.MetadataStore(config)
    kind = store.put_artifact_type(pb.ArtifactType(name="Model"))
    store.put_artifacts([pb.Artifact(type_id=kind, uri=f"/models/{i}" * 20) for i in range(300)])
    return path


@pytest.fixture
def path(intact, tmp_path):
    return shutil.copy(intact, tmp_path / "metadata.sqlite")


def write_garbage(path):
    path.write_bytes(b"garbage" * 100)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_pages(path):
    data = bytearray(path.read_bytes())
    data[8192:40960] = bytes(255 - byte for byte in data[8192:40960])
    path.write_bytes(data)


def empty_a_property(path):
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO ContextProperty (context_id, name, is_custom_property) VALUES (1, 'x', 1)")


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.reliability("torn file", "metadata")
@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("damage", [write_garbage, truncate, flip_pages, empty_a_property, replace_by_folder])
def test_damage_is_one_sentence_with_the_path(path, damage, is_written):
    damage(path)
    with pytest.raises(InputError) as error:
        check_metadata_file(path, is_written=is_written)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_intact_an_empty_and_no_file_pass_unchanged(path, tmp_path):
    before = path.read_bytes()
    (tmp_path / "empty").touch()
    for each in (path, tmp_path / "empty", tmp_path / "none"):
        for is_written in (True, False):
            check_metadata_file(each, is_written=is_written)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "metadata.sqlite"]


@pytest.mark.reliability("concurrent runs", "metadata")
def test_a_lock_of_another_program_is_noticed_soon(path, monkeypatch):
    monkeypatch.setattr(metadata_file, "_LOCK_SECONDS", 0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for is_written in (True, False):
        with pytest.raises(InputError, match=str(path)):
            check_metadata_file(path, is_written=is_written)
    other.execute("ROLLBACK")
    check_metadata_file(path, is_written=True)
