import sqlite3

import pytest

from detloom.pipelines.lineage.store import LineageStore
from detloom.schemas.errors import InputError


@pytest.mark.reliability("hostile input", "metadata")
@pytest.mark.parametrize("content", [b"", b"hello"])
def test_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path, content):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"metadata\.sqlite: "):
        LineageStore(path)
    assert path.read_bytes() == content


def test_missing_file_is_refused_and_not_created(tmp_path):
    path = tmp_path / "metadata.sqlite"
    with pytest.raises(InputError, match=r"metadata\.sqlite: no such file.*--workspace"):
        LineageStore(path)
    assert not path.exists()


@pytest.mark.reliability("hostile input", "metadata")
def test_other_database_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE a (b)")
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"metadata\.sqlite: .*ML Metadata"):
        LineageStore(path)
    assert path.read_bytes() == before


def test_store_with_an_older_schema_is_refused_and_not_migrated(two_runs, tmp_path):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(two_runs.path.read_bytes())
    with sqlite3.connect(path) as other:
        other.execute("UPDATE MLMDEnv SET schema_version = 9")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"metadata\.sqlite: .*ML Metadata"):
        LineageStore(path)
    assert path.read_bytes() == before
