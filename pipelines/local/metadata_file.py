"""Check the file of ML Metadata before a run, because TFX reports damage as a failed query and waits long for locks."""

import contextlib
import sqlite3
from pathlib import Path

from detloom.schemas.errors import InputError

_LOCK_SECONDS = 5.0
_ADVICE = (
    "move it away to start with an empty history (finished steps run again; pushed models stay), or restore it from a "
    "backup"
)


def check_metadata_file(path: Path) -> None:
    """Check that the file, if it exists, is an intact SQLite database that this process may write.

    Raises:
        InputError: it is damaged or something else, or another program holds its lock.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if not path.is_file():
        raise InputError(f"{path}: is not a file, needed: an SQLite database of ML Metadata; {_ADVICE}.")
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # the lock that a writer needs
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            database.execute("ROLLBACK")
    except sqlite3.OperationalError as error:  # locked, or not writable
        raise InputError(
            f"{path}: could not be used within {_LOCK_SECONDS:g} s ({error}); end other programs that use it, such as "
            "a database browser, check that it can be written, and run again."
        ) from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: is damaged ({error}); {_ADVICE}.") from None
    if found != "ok":
        raise InputError(f"{path}: is damaged ({' '.join(str(found).split())[:200]}); {_ADVICE}.")
