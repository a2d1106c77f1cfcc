import threading

import pytest

from detloom.components.notifier.delivery import NotSentError, call_within, try_again


def failing(num_failures, *, may_pass=True):
    """A function that fails so often, and the list that grows with each call."""
    calls = []

    def send():
        calls.append(None)
        if len(calls) <= num_failures:
            raise NotSentError("busy", may_pass=may_pass)

    return send, calls


def test_it_is_tried_until_it_is_taken():
    send, calls = failing(2)
    try_again(send, (0, 0))
    assert len(calls) == 3


def test_after_the_last_try_the_number_of_tries_is_said():
    send, calls = failing(9)
    with pytest.raises(NotSentError, match=r"^busy, 3 tries$"):
        try_again(send, (0, 0))
    assert len(calls) == 3


def test_what_cannot_pass_is_not_tried_again():
    send, calls = failing(9, may_pass=False)
    with pytest.raises(NotSentError, match=r"^busy$"):
        try_again(send, (0, 0))
    assert len(calls) == 1


def test_a_call_returns_and_raises_as_the_function_does():
    assert call_within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        call_within(5, lambda: {}[1])


def test_what_takes_too_long_is_left_behind():
    done = threading.Event()
    try:
        with pytest.raises(NotSentError, match=r"no answer within 0.01 s"):
            call_within(0.01, done.wait)
    finally:
        done.set()
