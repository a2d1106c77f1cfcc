import sqlite3

import pytest

from detloom.pipelines.lineage.store import LineageStore
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(("content", "message"), [(b"", "no SQLite database"), (b"hello", "no SQLite database")])
def test_a_file_that_is_no_database_is_refused_and_stays(tmp_path, content, message):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        LineageStore(path)
    assert path.read_bytes() == content


def test_a_missing_file_is_refused_and_not_made(tmp_path):
    path = tmp_path / "metadata.sqlite"
    with pytest.raises(InputError, match=r"metadata\.sqlite: cannot be read \(No such file or directory\)"):
        LineageStore(path)
    assert not path.exists()


def test_another_database_is_refused_and_gets_no_tables(tmp_path):
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE a (b)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot be opened as ML Metadata"):
        LineageStore(path)
    assert path.read_bytes() == before


def test_a_store_of_an_older_schema_is_refused_and_not_migrated(two_runs, tmp_path):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(two_runs.path.read_bytes())
    with sqlite3.connect(path) as other:
        other.execute("UPDATE MLMDEnv SET schema_version = 9")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot be opened as ML Metadata"):
        LineageStore(path)
    assert path.read_bytes() == before
