"""Check the file of ML Metadata, which reports damage as a failed query and waits long for locks."""

import contextlib
import os
import sqlite3
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape

METADATA_FILE = "metadata.sqlite"  # in a workspace
CODE_FOLDER = "code"  # in a workspace
_LOCK_SECONDS = 5.0
_VALUES = "int_value, double_value, string_value, byte_value, proto_value, bool_value"
# Rows for which each query of ML Metadata fails that meets them.
_EMPTY_PROPERTIES = " UNION ALL ".join(
    f"SELECT 1 FROM {table}Property WHERE COALESCE({_VALUES}) IS NULL"  # noqa: S608  # constants
    for table in ("Artifact", "Execution", "Context")
)
_ADVICE = (
    "move it away to start with an empty history (finished steps run again; pushed models stay), or restore it from a "
    "backup"
)


def check_metadata_file(path: Path, *, is_written: bool) -> None:
    """Check that the file, if it exists, is an intact SQLite database, and if `is_written` that it can be written.

    A transaction of a killed process is rolled back.

    Raises:
        InputError: it is damaged or something else, it cannot be written, or another program holds its lock.
    """
    name = escape(str(path))
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if not path.is_file():
        raise InputError(f"{name}: is not a file, needed: an SQLite database of ML Metadata; {_ADVICE}.")
    # SQLite begins a transaction that only reads if it cannot write.
    if is_written and not os.access(path, os.W_OK):
        raise InputError(f"{name}: cannot be written; make the file writable, or choose another workspace.")
    # A killed process leaves a journal, which only a connection that may write can roll back, also for later readers.
    has_journal = path.with_name(f"{path.name}-journal").exists()
    try:
        address = f"{path.absolute().as_uri()}?mode={'rw' if is_written or has_journal else 'ro'}"
        connection = sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
        with contextlib.closing(connection) as database:
            database.execute("BEGIN IMMEDIATE" if is_written else "BEGIN")  # the first takes the lock of a writer
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            with contextlib.suppress(sqlite3.OperationalError):  # no such table or column, in another version
                result = "a property without a value" if database.execute(_EMPTY_PROPERTIES).fetchone() else result
            database.execute("ROLLBACK")
    except sqlite3.OperationalError as error:  # locked, or not writable
        raise InputError(
            f"{name}: could not be used within {_LOCK_SECONDS:g} s ({error}); end other programs that use it, such as "
            "a database browser, check that it can be written, and run again."
        ) from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"{name}: is damaged ({error}); {_ADVICE}.") from None
    if result != "ok":
        raise InputError(f"{name}: is damaged ({' '.join(str(result).split())[:200]}); {_ADVICE}.")
