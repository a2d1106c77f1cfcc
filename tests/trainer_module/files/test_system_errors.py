import errno
import os
import shutil
from types import SimpleNamespace

import pytest
import tensorflow as tf

from detloom.pipelines import cli as command_line
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.system_errors import describe_system_error


@pytest.fixture
def full_disk(monkeypatch):
    """Report that every file system is full."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0, total=1 << 20))


def os_error(number, *names):
    return OSError(number, os.strerror(number), *names)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO, errno.ENOENT])
def test_an_error_of_the_system_is_described_with_its_file(number):
    text = describe_system_error(os_error(number, "/data/labels\n.json"))
    assert text.startswith(f"/data/labels\\n.json: {os.strerror(number)}; ")
    assert "\n" not in text


def test_the_full_file_system_is_found_on_the_command_line(full_disk, tmp_path):
    text = describe_system_error(
        os_error(errno.ENOSPC), [f"--output={tmp_path}/a/b", "gs://bucket/x", "x" * 5000, "\0"]
    )
    assert f"{tmp_path}, 0 of 1024 KiB free" in text


def test_an_error_that_beam_has_replaced_is_found():
    def replace():
        try:
            raise os_error(errno.EACCES, "/data/a.jpg")
        except OSError:
            error = RuntimeError("in a step")
            error._tagged_with_step = True
            raise error  # noqa: B904 - as apache_beam/runners/common.py does

    with pytest.raises(RuntimeError) as failure:
        replace()
    assert "/data/a.jpg" in describe_system_error(failure.value)


def test_a_cause_counts_and_a_context_does_not():
    caused, handling = RuntimeError(), KeyError("a bug while an error was handled")
    caused.__cause__ = handling.__context__ = os_error(errno.EACCES, "/data/a.jpg")
    assert "/data/a.jpg" in describe_system_error(caused)
    assert describe_system_error(handling) is None


@pytest.mark.parametrize("error", [OSError("of a library"), ValueError("a bug"), AssertionError()], ids=repr)
def test_other_errors_are_not_described(error):
    assert describe_system_error(error) is None


def test_errors_of_tensorflow(full_disk, monkeypatch):
    message = "{{function_node x}} /data/ckpt-0; No space left on device [Op:SaveV2]\nmore"
    full = tf.errors.ResourceExhaustedError(None, None, message)
    assert describe_system_error(full).startswith("/data/ckpt-0; No space left on device (full: ")
    assert "/data/a" in describe_system_error(tf.errors.PermissionDeniedError(None, None, "/data/a; Permission denied"))
    assert describe_system_error(tf.errors.InvalidArgumentError(None, None, "shapes")) is None
    monkeypatch.undo()
    # The partial file was deleted, and the disk has space again.
    assert describe_system_error(full).startswith("/data/ckpt-0; No space left on device; free some space")
    assert describe_system_error(tf.errors.ResourceExhaustedError(None, None, "memory of a GPU"), ["."]) is None


@pytest.mark.parametrize(
    ("error", "code"), [(os_error(errno.EACCES, "/data/a"), 1), (InputError("a: got b"), 1), (KeyError("bug"), None)]
)
def test_the_command_line_prints_one_sentence_and_shows_bugs_with_their_traceback(error, code, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr(command_line, "cli", fail)
    with pytest.raises(SystemExit if code else KeyError) as ended:
        command_line.main()
    if code:
        assert ended.value.code == code
        assert len(capsys.readouterr().err.splitlines()) == 1
