import functools
import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from clock import Clock

from detloom.components.pusher import atomic_push
from detloom.components.pusher.locks import ClaimLock, GenerationLock
from detloom.components.pusher.versions import open_destination, verify_version
from detloom.schemas.errors import InputError

ROOT = Path(atomic_push.__file__).parents[2]
# Six processes push different models into one folder, several times each.
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


@pytest.mark.reliability("concurrent runs", "push")
@pytest.mark.slow  # six processes
def test_concurrent_pushers_do_not_corrupt_each_other(make_model, tmp_path):
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


class Claims(dict):
    """A storage of claims in memory, by name."""

    root = "gs://bucket/serving"

    def list_names(self, folder, with_hidden):
        return list(self)

    def read(self, path, limit_bytes):
        return self.get(Path(path).name)

    def write(self, path, data):
        self[Path(path).name] = data

    def delete(self, path):
        self.pop(Path(path).name, None)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def claims():
    return Claims()


@pytest.fixture
def make_lock(claims, clock):
    numbers = itertools.count(1)

    def make(sleep=None):
        owner = '{"user": "ann", "pid": 7, "host": "laptop", "run": "r1"}'
        return ClaimLock(claims, owner, clock=clock, sleep=sleep or clock.sleep, now=lambda: next(numbers))

    return make


def test_free_claim_lock_is_taken_without_waiting_and_released(make_lock, claims, clock):
    with make_lock().hold(10.0) as check_held:
        check_held()
        assert len(claims) == 1
    assert claims == {}
    assert clock.now == 0.0


def test_waiting_for_a_live_claim_ends_with_an_error_that_names_its_owner(make_lock, clock):
    owner = make_lock()
    owner.acquire(0.0)

    def sleep(seconds):
        clock.sleep(seconds)
        owner.renew()

    with pytest.raises(InputError, match=r"600 s \(ann, process 7 on laptop, run r1\)"):
        make_lock(sleep).acquire(600.0)
    owner.check_held()


@pytest.mark.reliability("kill", "push")
def test_lock_of_a_dead_owner_is_taken_over_after_a_lease(make_lock, claims, clock, caplog):
    dead = make_lock()
    dead.acquire(0.0)
    next_one = make_lock()
    next_one.acquire(600.0)
    assert list(claims) == [next_one.name]
    assert clock.now == 60.0
    assert "(ann, process 7 on laptop, run r1)" in caplog.text


@pytest.mark.reliability("lost lease", "push")
def test_owner_suspended_for_half_a_lease_loses_the_lock(make_lock, clock):
    sleeper = make_lock()
    sleeper.acquire(0.0)
    clock.sleep(31.0)
    with pytest.raises(OSError, match=r"gs://bucket/serving: .*lock"):
        sleeper.check_held()


@pytest.mark.reliability("lost lease", "push")
def test_owner_does_not_rewrite_its_claim_after_it_was_removed(make_lock, claims):
    sleeper = make_lock()
    sleeper.acquire(0.0)
    claims.clear()
    with pytest.raises(OSError, match=r"gs://bucket/serving: .*lock"):
        sleeper.check_held()
    assert claims == {}


def test_of_two_claims_the_earlier_one_is_kept(make_lock, claims):
    first, second = make_lock(), make_lock()
    claims.write(second.name, b"{}")

    def second_withdraws(seconds):
        assert first.name in claims
        claims.delete(second.name)

    first._is_claimed, first._sleep = True, second_withdraws
    first.acquire(100.0)
    assert list(claims) == [first.name]


class LockObject:
    """An object of Cloud Storage in memory.

    Attributes:
        loses_answer: the next write is executed and ends with an error.
    """

    root = "gs://bucket/serving"

    def __init__(self):
        self.data, self.generation, self.loses_answer = b"", 0, False
        self._last = 100

    always_compares = True

    def read_generation(self, path, limit_bytes):
        return self.data, self.generation

    def write_generation(self, path, data, generation):
        if generation != self.generation:
            return 0
        self._last += 1
        self.data, self.generation = data, self._last
        if self.loses_answer:
            self.loses_answer = False
            raise OSError(5, "no response")
        return self.generation

    def delete_generation(self, path, generation):
        if generation == self.generation:
            self.data, self.generation = b"", 0


@pytest.fixture
def lock_object():
    return LockObject()


@pytest.fixture
def make_generation_lock_of(lock_object, clock):
    owner = '{"user": "ann", "pid": 7, "host": "laptop", "run": "r1"}'
    return lambda sleep=None: GenerationLock(lock_object, owner, clock=clock, sleep=sleep or clock.sleep)


def test_free_generation_lock_is_taken_without_waiting_and_released(make_generation_lock_of, lock_object, clock):
    with make_generation_lock_of().hold(10.0) as check_held:
        check_held()
        assert lock_object.generation == 101  # not renewed within a second
        clock.sleep(2.0)
        check_held()
        assert lock_object.generation == 102
    assert lock_object.generation == 0
    assert clock.now == 2.0


def test_waiting_for_a_renewed_generation_ends_with_an_error_that_names_its_owner(make_generation_lock_of, clock):
    owner = make_generation_lock_of()
    owner.acquire(0.0)

    def sleep(seconds):
        clock.sleep(seconds)
        owner.renew()

    with pytest.raises(InputError, match=r"600 s \(ann, process 7 on laptop, run r1\)"):
        make_generation_lock_of(sleep).acquire(600.0)
    owner.check_held()


@pytest.mark.reliability("lost lease", "push")
def test_generation_that_has_not_changed_for_a_lease_is_taken_over(make_generation_lock_of, lock_object, clock, caplog):
    suspended, next_one = make_generation_lock_of(), make_generation_lock_of()
    suspended.acquire(0.0)
    next_one.acquire(600.0)
    assert clock.now == 60.0
    assert "(ann, process 7 on laptop, run r1)" in caplog.text
    with pytest.raises(OSError, match=r"gs://bucket/serving: .*lock"):
        suspended.check_held()
    suspended.release()
    next_one.check_held()
    assert lock_object.generation == 102


def test_suspended_owner_goes_on_if_nobody_took_the_lock(make_generation_lock_of, lock_object, clock):
    owner = make_generation_lock_of()
    owner.acquire(0.0)
    clock.sleep(1000.0)
    owner.check_held()  # raises no error
    owner.release()
    assert lock_object.generation == 0


def test_renewal_that_was_executed_but_ended_with_an_error_does_not_lose_the_lock(
    make_generation_lock_of, lock_object, clock
):
    owner = make_generation_lock_of()
    owner.acquire(0.0)
    clock.sleep(15.0)
    lock_object.loses_answer = True
    with pytest.raises(OSError, match="no response"):
        owner.renew()
    owner.check_held()
    owner.release()
    assert lock_object.generation == 0


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


class ClaimsInTurns(Claims):
    """Claims of which each call is one step of a thread."""

    def __init__(self, claims, turns, number):
        self._claims, self._turns, self._number = claims, turns, number

    def __getattribute__(self, name):
        if name not in ("list_names", "read", "write", "delete"):
            return super().__getattribute__(name)

        def call(*args, **options):
            self._turns.step(self._number)
            return getattr(self._claims, name)(*args, **options)

        return call


class GenerationsInTurns:
    """A lock object of which each call is one step of a thread."""

    root = "gs://bucket/serving"

    def __init__(self, lock_object, turns, number):
        self._lock_object, self._step = lock_object, functools.partial(turns.step, number)

    def __getattr__(self, name):
        def call(*args):
            self._step()
            return getattr(self._lock_object, name)(*args)

        return call


def make_claim_lock(claims, turns, number):
    storage = ClaimsInTurns(claims, turns, number)
    return ClaimLock(storage, "{}", clock=lambda: 0.0, sleep=lambda _: turns.step(number), now=lambda: 10 - number)


def make_generation_lock(lock_object, turns, number):
    storage = GenerationsInTurns(lock_object, turns, number)
    clock = itertools.count().__next__  # so that each check renews
    return GenerationLock(storage, "{}", lease_seconds=1e9, clock=clock, sleep=lambda _: turns.step(number))


@pytest.mark.reliability("concurrent runs", "push")
@pytest.mark.parametrize(("storage_type", "make"), [(Claims, make_claim_lock), (LockObject, make_generation_lock)])
@pytest.mark.parametrize("seed", range(40))
def test_never_two_owners_in_any_order_of_steps(seed, storage_type, make):
    num_threads, storage = 4, storage_type()
    turns, inside, most, held = Turns(seed, num_threads), [], [], []

    def run(number):
        lock = make(storage, turns, number)
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
