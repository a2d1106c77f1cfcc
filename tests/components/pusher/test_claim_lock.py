import itertools
import random
import threading

import pytest

from detloom.components.pusher.claim_lock import ClaimLock
from detloom.schemas.errors import InputError


class Claims(dict):
    """The claims' place, in memory."""

    where = "gs://bucket/serving"

    def names(self):
        return list(self)

    def read(self, name):
        return self.get(name)

    def write(self, name, text):
        self[name] = text

    def remove(self, name):
        self.pop(name, None)


class Clock:
    """Goes on by sleeping alone."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


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


def test_a_free_lock_is_taken_without_waiting_and_given_back(make_lock, claims, clock):
    with make_lock().hold(10.0) as check_held:
        check_held()
        assert len(claims) == 1
    assert claims == {}
    assert clock.now == 0.0


def test_a_living_owner_is_waited_for_and_named_when_that_takes_too_long(make_lock, clock):
    owner = make_lock()
    owner.acquire(0.0)

    def sleep(seconds):
        clock.sleep(seconds)
        owner.renew()

    with pytest.raises(InputError, match=r"for 600 s another push has not ended \(ann, process 7 on laptop, run r1\)"):
        make_lock(sleep).acquire(600.0)
    owner.check_held()


def test_the_lock_of_a_dead_owner_is_taken_over_after_a_lease(make_lock, claims, clock, caplog):
    dead = make_lock()
    dead.acquire(0.0)
    next_one = make_lock()
    next_one.acquire(600.0)
    assert list(claims) == [next_one.name]
    assert clock.now == 60.0
    assert (
        "the push before this one was cut off (ann, process 7 on laptop, run r1); its lock is taken over" in caplog.text
    )


def test_an_owner_that_slept_for_half_a_lease_knows_that_it_may_have_lost_the_lock(make_lock, clock):
    sleeper = make_lock()
    sleeper.acquire(0.0)
    clock.sleep(31.0)
    with pytest.raises(OSError, match="stood still for so long that its lock is lost"):
        sleeper.check_held()


def test_an_owner_whose_claim_was_removed_does_not_write_it_again(make_lock, claims):
    sleeper = make_lock()
    sleeper.acquire(0.0)
    claims.clear()
    with pytest.raises(OSError, match="its lock is lost"):
        sleeper.check_held()
    assert claims == {}


def test_of_two_that_see_each_other_the_first_comer_keeps_its_claim(make_lock, claims):
    first, second = make_lock(), make_lock()
    claims.write(second.name, "{}")

    def second_withdraws(seconds):
        assert first.name in claims
        claims.remove(second.name)

    first._is_claimed, first._sleep = True, second_withdraws
    first.acquire(100.0)
    assert list(claims) == [first.name]


class Turns:
    """Lets one thread at a time go on by one step, in an order drawn from a seed."""

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
    """Each call is a step of its thread."""

    def __init__(self, claims, turns, number):
        self._claims, self._turns, self._number = claims, turns, number

    def __getattribute__(self, name):
        if name not in ("names", "read", "write", "remove"):
            return super().__getattribute__(name)

        def call(*args):
            self._turns.step(self._number)
            return getattr(self._claims, name)(*args)

        return call


@pytest.mark.parametrize("seed", range(40))
def test_never_two_at_once_whatever_the_order_of_their_steps(seed, claims):
    num_threads = 4
    turns, inside, most, held = Turns(seed, num_threads), [], [], []

    def run(number):
        files = ClaimsInTurns(claims, turns, number)
        lock = ClaimLock(files, "{}", clock=lambda: 0.0, sleep=lambda _: turns.step(number), now=lambda: 10 - number)
        turns.step(number)
        lock.acquire(1.0)
        inside.append(number)
        most.append(len(inside))
        lock.check_held()
        inside.remove(number)
        held.append(number)
        lock._withdraw()
        turns.end(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    turns.run()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert sorted(held) == [0, 1, 2, 3]
