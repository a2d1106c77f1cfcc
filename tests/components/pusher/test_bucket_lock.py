import functools
import itertools
import os
import random
import threading
import time

import pytest
from clock import Clock
from pushes import push

from detloom.components.pusher.bucket_lock import BucketLock
from detloom.components.pusher.push import list_versions, read_records
from detloom.components.pusher.versions import open_destination, verify_version
from detloom.schemas.errors import InputError


def push_three_times(model, serving):
    """Push in this forked process, and end it."""
    code = 1
    try:
        for _ in range(3):
            push(model, serving, now=time.time, keep_versions=4)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.reliability("concurrent runs", "push")
@pytest.mark.slow  # six processes
def test_concurrent_pushers_do_not_corrupt_each_other(make_model, tmp_path):
    serving, children = tmp_path / "serving", []
    for number in range(6):
        model = make_model(tmp_path / f"model{number}", b"graph %d" % number)
        children.append(os.fork())
        if children[-1] == 0:
            push_three_times(model, serving)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
    versions = list_versions(serving)
    destination = open_destination(serving)
    assert [verify_version(destination, version) for version in versions] == [[]] * 4
    records = read_records(serving)
    numbers = [record["version"] for record in records]
    assert numbers == sorted(set(numbers))  # each once, in the order of the pushes
    assert [record["previous_version"] for record in records] == [None, *numbers[:-1]]
    assert versions == numbers[-4:]
    assert not [path for path in serving.iterdir() if path.name.startswith((".push-", ".trash-"))]


@pytest.fixture
def clock():
    return Clock()


class LockObject:
    """An object of a bucket in memory.

    Attributes:
        loses_answer: the next write is executed and ends with an error.
    """

    root = "gs://bucket/serving"

    def __init__(self):
        self.data, self.number, self.loses_answer = b"", 0, False

    def generation(self):
        return {"version": str(self.number)} if self.number else None

    def read_generation(self, path, limit_bytes):
        return self.data, self.generation()

    def write_generation(self, path, data, generation):
        if generation != self.generation():
            return None
        self.data, self.number = data, self.number + 1
        if self.loses_answer:
            self.loses_answer = False
            raise OSError(5, "no response")
        return self.generation()


@pytest.fixture
def lock_object():
    return LockObject()


@pytest.fixture
def make_lock(lock_object, clock):
    owner = '{"user": "ann", "pid": 7, "host": "laptop", "run": "r1"}'
    return lambda sleep=None: BucketLock(lock_object, owner, clock=clock, sleep=sleep or clock.sleep)


def test_free_lock_is_taken_without_waiting_and_emptied(make_lock, lock_object, clock):
    for _ in range(2):  # missing, then empty
        with make_lock().hold(10.0) as check_held:
            before = lock_object.number
            check_held()
            assert lock_object.number == before  # not renewed within a second
            clock.sleep(2.0)
            check_held()
            assert lock_object.number == before + 1
            assert b"ann" in lock_object.data
        assert lock_object.data == b""
    assert clock.now == 4.0


def test_waiting_for_a_renewed_lock_ends_with_an_error_that_names_its_owner(make_lock, clock):
    owner = make_lock()
    owner.acquire(0.0)

    def sleep(seconds):
        clock.sleep(seconds)
        owner.renew()

    with pytest.raises(InputError, match=r"600 s \(ann, process 7 on laptop, run r1\)"):
        make_lock(sleep).acquire(600.0)
    owner.check_held()


@pytest.mark.reliability("lost lease", "push")
def test_lock_of_a_dead_owner_is_taken_over_after_a_lease(make_lock, lock_object, clock, caplog):
    suspended, next_one = make_lock(), make_lock()
    suspended.acquire(0.0)
    next_one.acquire(600.0)
    assert clock.now == 60.0
    assert "(ann, process 7 on laptop, run r1)" in caplog.text
    with pytest.raises(OSError, match=r"gs://bucket/serving: .*lock"):
        suspended.check_held()
    suspended.release()
    next_one.check_held()
    assert lock_object.number == 2


def test_server_that_refuses_each_replacement_is_not_asked_without_end(make_lock, lock_object, monkeypatch):
    monkeypatch.setattr(lock_object, "write_generation", lambda *write: None)
    with pytest.raises(InputError, match="10 s"):
        make_lock().acquire(10.0)


def test_suspended_owner_goes_on_if_nobody_took_the_lock(make_lock, lock_object, clock):
    owner = make_lock()
    owner.acquire(0.0)
    clock.sleep(1000.0)
    owner.check_held()  # raises no error
    owner.release()
    assert lock_object.data == b""


def test_renewal_that_was_executed_but_ended_with_an_error_does_not_lose_the_lock(make_lock, lock_object, clock):
    owner = make_lock()
    owner.acquire(0.0)
    clock.sleep(15.0)
    lock_object.loses_answer = True
    with pytest.raises(OSError, match="no response"):
        owner.renew()
    owner.check_held()
    owner.release()
    assert lock_object.data == b""


def test_owner_renews_the_lock_while_it_works(lock_object):
    with BucketLock(lock_object, "{}", lease_seconds=0.04, clock=itertools.count().__next__).hold(0.0):
        before, end = lock_object.number, time.monotonic() + 10.0
        while lock_object.number < before + 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert lock_object.number >= before + 3


class Turns:
    """Lets one thread at a time do one step, in a random order given by a seed."""

    def __init__(self, seed, num_threads):
        self._draw, self._turns = random.Random(seed), [threading.Semaphore(0) for _ in range(num_threads)]
        self._back, self._alive = threading.Semaphore(0), set(range(num_threads))

    def step(self, number):
        self._back.release()
        self._turns[number].acquire()

    def end(self, number):
        self._alive.discard(number)
        self._back.release()

    def run(self):
        for _ in range(len(self._turns)):
            self._back.acquire()
        while self._alive:
            self._turns[self._draw.choice(sorted(self._alive))].release()
            self._back.acquire()


class LockObjectInTurns:
    """A lock object of which each call is one step of a thread."""

    root = "gs://bucket/serving"

    def __init__(self, lock_object, turns, number):
        self._lock_object, self._step = lock_object, functools.partial(turns.step, number)

    def __getattr__(self, name):
        def call(*args):
            self._step()
            return getattr(self._lock_object, name)(*args)

        return call


@pytest.mark.reliability("concurrent runs", "push")
@pytest.mark.parametrize("seed", range(40))
def test_never_two_owners_in_any_order_of_steps(seed):
    num_threads, lock_object = 4, LockObject()
    turns, inside, most, held = Turns(seed, num_threads), [], [], []

    def run(number):
        storage = LockObjectInTurns(lock_object, turns, number)
        clock = itertools.count().__next__  # so that each check renews
        lock = BucketLock(storage, "{}", lease_seconds=1e9, clock=clock, sleep=lambda _: turns.step(number))
        turns.step(number)
        lock.acquire(1e6)
        inside.append(number)
        most.append(len(inside))
        lock.check_held()
        inside.remove(number)
        held.append(number)
        lock.release()
        turns.end(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    turns.run()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert sorted(held) == [0, 1, 2, 3]
