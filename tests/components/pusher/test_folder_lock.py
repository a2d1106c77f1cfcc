import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from detloom.components.pusher import atomic_push
from detloom.components.pusher.destination import open_destination
from detloom.components.pusher.folder_lock import describe_self, format_owner, hold_folder_lock
from detloom.components.pusher.versions import verify_version
from detloom.schemas.errors import InputError

ROOT = Path(atomic_push.__file__).parents[2]
# Six processes push a model of their own into one folder, several times each.
PUSHERS = """
import os, sys
from pathlib import Path
from detloom.components.pusher.atomic_push import push_model

folder = Path(sys.argv[1])
children = []
for number in range(6):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(3):
                push_model(folder / f"model{number}", folder / "serving", check=lambda copy: None, keep_versions=4)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_pushers_at_the_same_time_do_not_corrupt_each_other(make_model, tmp_path):
    for number in range(6):
        make_model(tmp_path / f"model{number}", b"graph %d" % number)
    program = [sys.executable, "-c", textwrap.dedent(PUSHERS), str(tmp_path)]
    done = subprocess.run(
        program, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    serving = tmp_path / "serving"
    versions = atomic_push.list_versions(serving)
    destination = open_destination(serving)
    assert [verify_version(destination, version) for version in versions] == [[]] * 4
    records = atomic_push.read_records(serving)
    numbers = [record["version"] for record in records]
    assert numbers == sorted(set(numbers))  # each once, in the order of the pushes
    assert [record["previous_version"] for record in records] == [None, *numbers[:-1]]
    assert versions == numbers[-4:]
    assert not [path for path in serving.iterdir() if path.name.startswith((".push-", ".trash-"))]


def test_a_living_owner_is_waited_for_and_named(tmp_path, caplog):
    caplog.set_level("INFO", logger="detloom")
    times = iter(range(100))
    waiter = hold_folder_lock(tmp_path / "lock", "", 5.0, clock=lambda: next(times), sleep=lambda seconds: None)
    message = rf"for 5 s another push has not ended \(.*process {os.getpid()} on .*run-7"
    with hold_folder_lock(tmp_path / "lock", describe_self("run-7"), 0.0), pytest.raises(InputError, match=message):
        waiter.__enter__()
    assert caplog.text.count("waiting for another push to end") == 1


def test_a_released_lock_names_nobody_and_one_of_a_dead_owner_is_said_to_be_taken_over(tmp_path, caplog):
    with hold_folder_lock(tmp_path / "lock", describe_self(), 0.0):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / "lock").read_text() == ""
    (tmp_path / "lock").write_text('{"user": "ann", "pid": 7, "host": "a\\u001b[1m", "run": ""}')  # as a killed one did
    with hold_folder_lock(tmp_path / "lock", describe_self(), 0.0):
        pass
    assert r"was cut off (ann, process 7 on a\x1b[1m); its lock is taken over" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 1}'])
def test_an_owner_that_nobody_can_read_is_another_process(text):
    assert format_owner(text) == "another process"


def test_a_lock_whose_file_was_removed_is_known_to_be_lost(tmp_path):
    with hold_folder_lock(tmp_path / "lock", describe_self(), 0.0) as check_held:
        check_held()
        (tmp_path / "lock").unlink()
        with hold_folder_lock(tmp_path / "lock", describe_self(), 0.0) as check_new_one:
            with pytest.raises(OSError, match="removed or replaced"):
                check_held()
            check_new_one()


def test_a_lock_on_a_file_that_was_removed_while_waiting_is_not_taken_for_one(tmp_path):
    path = tmp_path / "lock"
    owner = hold_folder_lock(path, describe_self(), 0.0)
    owner.__enter__()

    def replace_and_release(seconds):
        path.unlink()
        owner.__exit__(None, None, None)

    with hold_folder_lock(path, describe_self(), 9.0, sleep=replace_and_release) as check_held:
        check_held()
        assert json.loads(path.read_text())["pid"] == os.getpid()
