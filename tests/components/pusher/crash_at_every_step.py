"""A program, run by test_crash.py, that stops a push at each file operation and examines the result.

Python's audit events give the file operations. Each attempt runs in a forked child, which at step `n` is killed
("kill"), gets an error ("error") or is interrupted ("interrupt"), or from then on has a full ("full") or read-only disk
("read_only"). The program prints one JSON list.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from detloom.components.pusher.manifest import MANIFEST_FILE, build_manifest, parse_manifest
from detloom.components.pusher.push import list_versions, push_model, read_records, roll_back
from detloom.schemas.errors import InputError

_WATCHED = ("open", "os.", "shutil.", "fcntl.", "pathlib.")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_REMOVES = ("os.remove", "os.rmdir", "shutil.rmtree", "os.truncate")
_NOT_STOPPED = 7
state = {"folder": "", "count": 0, "stop_at": 0, "mode": ""}


class Interrupted(BaseException):
    """Simulates Ctrl-C: no `except OSError` catches it."""


def watch(event, args):
    if not state["folder"] or not event.startswith(_WATCHED) or not any(state["folder"] in str(arg) for arg in args):
        return
    state["count"] += 1
    mode, is_now = state["mode"], state["count"] == state["stop_at"]
    if is_now and mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if is_now and mode == "interrupt":
        raise Interrupted(event)
    if is_now and mode == "error":
        raise OSError(errno.EIO, f"i/o error at {event}")
    if state["count"] >= state["stop_at"] and writes(event, args):
        if mode == "full" and event not in _REMOVES:
            raise OSError(errno.ENOSPC, f"no space left at {event}")
        if mode == "read_only":
            raise OSError(errno.EROFS, f"read-only at {event}")


def writes(event, args):
    if event == "open":
        return isinstance(args[2], int) and bool(args[2] & _WRITE_FLAGS)
    return event in (*_REMOVES, "os.mkdir", "os.rename", "os.fsync", "shutil.copyfile")


def watch_sync(descriptor):
    """Replace os.fsync, which has no audit event and takes most of the time."""
    watch("os.fsync", (state["folder"],))


def act(model_dir, push_dir, action, at):
    if action == "rollback":
        return roll_back(push_dir, reason="test", check=no_check, now=lambda: at)
    return push_model(model_dir, push_dir, keep_versions=2, check=no_check, now=lambda: at)


def no_check(folder):
    """Accept every copy."""


def attempt(model_dir, push_dir, action, stop_at, mode):
    """Push in a child process; return False if it has fewer steps than `stop_at`."""
    child = os.fork()
    if child == 0:
        state.update(folder=str(push_dir), stop_at=stop_at, mode=mode)
        with contextlib.suppress(OSError, ValueError, Interrupted):
            act(model_dir, push_dir, action, 1000.0)
        os._exit(_NOT_STOPPED if state["count"] < stop_at else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _NOT_STOPPED


def read_manifest(version_dir):
    return parse_manifest((version_dir / MANIFEST_FILE).read_bytes())


def look_at(push_dir):
    """Return complete versions, damaged versions and leftovers."""
    versions = list_versions(push_dir)
    whole = [v for v in versions if read_manifest(push_dir / str(v)).files == build_manifest(push_dir / str(v)).files]
    debris = [path.name for prefix in (".push-*", ".trash-*") for path in push_dir.glob(prefix)]
    return {"whole": whole, "broken": sorted(set(versions) - set(whole)), "debris": debris}


def main(old_model, new_model, work_dir, mode, action):
    sys.addaudithook(watch)
    os.fsync = watch_sync
    expected = build_manifest(old_model if action == "rollback" else new_model).digest
    results, before = [], work_dir / "before"
    push_model(old_model, before, check=no_check, now=lambda: 100.0)
    push_model(new_model, before, check=no_check, now=lambda: 200.0)
    if action == "push":
        push_model(old_model, before, check=no_check, now=lambda: 300.0)
    for stop_at in range(1, 1000):
        push_dir = work_dir / f"{mode}{stop_at}"
        shutil.copytree(before, push_dir)
        was_stopped = attempt(new_model, push_dir, action, stop_at, mode)
        after_stop = look_at(push_dir)
        latest = read_manifest(push_dir / str(max(after_stop["whole"])))
        is_done = latest.digest == expected and latest.push["version"] == 1000
        if is_done and action == "rollback":
            with contextlib.suppress(InputError):  # no other model is left to restore
                act(new_model, push_dir, action, 2000.0)
            # The next push removes leftovers; it publishes nothing, because the model is already served.
            result = push_model(old_model, push_dir, keep_versions=2, check=no_check, now=lambda: 3000.0)
        else:
            result = act(new_model, push_dir, action, 2000.0)
        results.append(
            {
                "stop_at": stop_at,
                "after_stop": after_stop,
                "after_rerun": look_at(push_dir),
                "recorded": [record["version"] for record in read_records(push_dir)],
                "version": result.version,
                "is_right": result.digest == expected,
            }
        )
        if not was_stopped:
            break
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5])
