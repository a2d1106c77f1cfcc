import sqlite3

import pytest

from detloom.pipelines.lineage.store import LineageStore
from detloom.schemas.errors import InputError


def write_text(path):
    path.write_bytes(b"hello")


def write_other_database(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE a (b)")
    other.close()


def write_older_schema(path):
    with sqlite3.connect(path) as other:
        other.execute("UPDATE MLMDEnv SET schema_version = 9")
    other.close()


@pytest.mark.reliability("hostile input", "metadata")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b""), "no such file, or an empty one"),
        (write_text, ""),
        (write_other_database, ".*ML Metadata"),
        (write_older_schema, ".*ML Metadata"),
    ],
)
def test_file_that_is_no_store_of_this_version_is_refused_and_unchanged(change, message, two_runs, tmp_path):
    path = tmp_path / "metadata.sqlite"
    if change is write_older_schema:
        path.write_bytes(two_runs.path.read_bytes())
    change(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"metadata\.sqlite: {message}"):
        LineageStore(path)
    assert path.read_bytes() == before


def test_missing_file_is_refused_and_not_created(tmp_path):
    path = tmp_path / "metadata.sqlite"
    with pytest.raises(InputError, match=r"metadata\.sqlite: no such file.*--workspace"):
        LineageStore(path)
    assert not path.exists()
