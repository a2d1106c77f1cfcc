"""Small files in a folder, or at an address that TFX's filesystem layer knows (gs://, s3://, hdfs://).

In a folder a file is written under another name and renamed. Object stores show an object when all of it is there; of
what is neither, a reader has to expect a file that was cut off.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from detloom.schemas.redact import redact

_SCHEME_MARK = "://"
_HIDDEN = "."  # what a killed write leaves begins with it


def list_names(folder: str) -> list[str]:
    """Names of the files, sorted; none where there is no such folder.

    Raises:
        OSError: the folder cannot be read, or the storage does not answer.
    """
    if _SCHEME_MARK not in folder:
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith(_HIDDEN))
    from tfx.dsl.io import fileio  # late: TensorFlow

    try:
        with _plain_errors(folder):
            fileio.exists(folder)  # raises where nothing is known; TensorFlow's listing would say that there is none
            return sorted({str(name) for name in fileio.listdir(folder)} - {""})
    except FileNotFoundError:
        return []


def read_bytes(folder: str, name: str, limit_bytes: int) -> bytes | None:
    """What is in a file, cut one byte after the limit; None where there is none.

    Raises:
        OSError: as `list_names`.
    """
    if _SCHEME_MARK not in folder:
        try:
            with Path(folder, name).open("rb") as file:
                return file.read(limit_bytes + 1)
        except FileNotFoundError:
            return None
    from tfx.dsl.io import fileio

    try:
        with _plain_errors(folder), fileio.open(f"{folder.rstrip('/')}/{name}", "rb") as file:
            return bytes(file.read(limit_bytes + 1))
    except FileNotFoundError:
        return None


def write_bytes(folder: str, name: str, data: bytes) -> None:
    """Write a file, instead of one of that name; makes the folder where it is missing.

    Raises:
        OSError: as `list_names`.
    """
    if _SCHEME_MARK not in folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{_HIDDEN}{name}.{uuid.uuid4().hex[:12]}")
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:  # also Ctrl-C
            partial.unlink(missing_ok=True)
            raise
        return
    from tfx.dsl.io import fileio

    with _plain_errors(folder):
        fileio.makedirs(folder)
        with fileio.open(f"{folder.rstrip('/')}/{name}", "wb") as file:
            file.write(data)


@contextlib.contextmanager
def _plain_errors(address: str) -> Iterator[None]:
    """TFX's and TensorFlow's errors as OSError."""
    import tensorflow as tf
    from tfx.dsl.io import fileio

    try:
        yield
    except (tf.errors.NotFoundError, fileio.NotFoundError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(address)) from None
    except (tf.errors.OpError, NotImplementedError) as error:
        raise OSError(errno.EIO, redact(str(error)), redact(address)) from None
