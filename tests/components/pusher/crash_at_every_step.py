"""A program of its own, run by test_atomic_push.py: stop a push at each file operation and look at what is left.

Python's audit events stand for the file operations, so the list of steps is the system's, not the test's. Each attempt
runs in a forked child, which dies ("kill") or gets an error ("error") at step `n`. Prints one JSON list.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from detloom.components.pusher.atomic_push import build_manifest, list_versions, push_model, read_manifest, read_records

_WATCHED = ("open", "os.", "shutil.", "fcntl.", "pathlib.")
_NOT_STOPPED = 7
state = {"folder": "", "count": 0, "stop_at": 0, "mode": ""}


def watch(event, args):
    if not state["folder"] or not event.startswith(_WATCHED) or not any(state["folder"] in str(arg) for arg in args):
        return
    state["count"] += 1
    if state["count"] == state["stop_at"]:
        if state["mode"] == "kill":
            os._exit(9)
        raise OSError(28, f"no space left at {event}")


def watch_sync(descriptor):
    """Instead of os.fsync, which has no audit event and costs most of the time."""
    watch("os.fsync", (state["folder"],))


def attempt(model_dir, push_dir, stop_at, mode):
    """Push in a child; false when it has fewer steps than `stop_at`."""
    child = os.fork()
    if child == 0:
        state.update(folder=str(push_dir), stop_at=stop_at, mode=mode)
        with contextlib.suppress(OSError, ValueError):
            push_model(model_dir, push_dir, model_uri="uri", now=lambda: 1000.0)
        os._exit(_NOT_STOPPED if state["count"] < stop_at else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _NOT_STOPPED


def look_at(push_dir):
    """Versions that are whole, versions that are not, and leftovers."""
    versions = list_versions(push_dir) if push_dir.is_dir() else []
    whole = [v for v in versions if read_manifest(push_dir / str(v)) == build_manifest(push_dir / str(v))]
    debris = [path.name for path in push_dir.glob(".push-*")] if push_dir.is_dir() else []
    return {"whole": whole, "broken": sorted(set(versions) - set(whole)), "debris": debris}


def main(old_model, new_model, work_dir, mode):
    sys.addaudithook(watch)
    os.fsync = watch_sync
    results = []
    for stop_at in range(1, 1000):
        push_dir = work_dir / f"{mode}{stop_at}"
        push_model(old_model, push_dir, model_uri="uri", now=lambda: 100.0)
        was_stopped = attempt(new_model, push_dir, stop_at, mode)
        after_stop = look_at(push_dir)
        result = push_model(new_model, push_dir, model_uri="uri", now=lambda: 2000.0)
        after_rerun = look_at(push_dir)
        recorded = [record["version"] for record in read_records(push_dir)]
        results.append(
            {
                "stop_at": stop_at,
                "after_stop": after_stop,
                "after_rerun": after_rerun,
                "recorded": recorded,
                "version": result.version,
                "is_right": read_manifest(result.path) == build_manifest(new_model),
            }
        )
        if not was_stopped:
            break
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
