"""Run TensorFlow Lite models in a process of their own: a damaged file can end or block the process that runs it."""

import functools
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array

# To import TensorFlow, which takes a minute on a busy machine, and for an image: presets need seconds.
_MAX_SECONDS = 180
_Arrays = Mapping[str, Array]
_LOCK = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked process: a thread that does not exist there may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class TfliteModel:
    """A loaded model; the process is started again after it was ended, and loads the model again.

    Attributes:
        signatures: names of the inputs and outputs by signature.
        inputs: shape and type of each input of `serving_default`; empty if the model lacks it.
    """

    def __init__(self, content: bytes) -> None:
        """Load a model.

        Raises:
            RuntimeError: with the reason, if it cannot be loaded.
        """
        self._content, self._key = content, hashlib.sha256(content).hexdigest()
        self.signatures, self.inputs = self.run(None)

    def run(self, inputs: _Arrays | None) -> Any:
        """Call `serving_default`; without inputs, return `signatures` and `inputs`.

        Raises:
            RuntimeError: with the reason, if the call fails, ends its process or takes too long.
        """
        with _LOCK:
            process = _process_of(os.getpid())  # a forked process has its own
            try:
                process.connection.send((self._key, None if self._key in process.loaded else self._content, inputs))
                answer = process.connection.recv()
            except (EOFError, OSError):
                raise RuntimeError(process.end()) from None
            except BaseException:  # Ctrl-C: the next answer would be that of this question
                process.end()
                raise
        if isinstance(answer, str):
            raise RuntimeError(answer)
        process.loaded.add(self._key)
        return answer


class _Process:
    """The process, and the models that it has loaded."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.loaded: set[str] = set()
        program = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import answer; answer(int(sys.argv[1]))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno()), *sys.path],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        )
        theirs.close()

    def end(self) -> str:
        """Return why the process ended; end it if it still runs."""
        _process_of.cache_clear()
        self._process.kill()
        code = self._process.wait()
        if code == -signal.SIGALRM:
            return f"it did not answer within {_MAX_SECONDS} s"
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"


@functools.cache
def _process_of(pid: int) -> _Process:
    return _Process()


def answer(handle: int) -> None:
    """Answer questions until the other process closes its end of the pipe. The alarm ends a model that never ends."""
    connection: Connection[Any, Any] = Connection(handle)
    runners: dict[str, Any] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.alarm(0)
        try:
            key, content, inputs = connection.recv()
        except EOFError:
            return
        signal.alarm(_MAX_SECONDS)
        try:
            connection.send(_answer_one(runners, key, content, inputs))
        except (ValueError, RuntimeError, MemoryError) as error:
            connection.send(str(error) or type(error).__name__)


def _answer_one(runners: dict[str, Any], key: str, content: bytes | None, inputs: _Arrays | None) -> Any:
    import tensorflow as tf  # late: the time limit covers it

    if content is not None:
        interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
        signatures = interpreter.get_signature_list()
        has_images = names.SIGNATURE_IMAGES in signatures
        runner = interpreter.get_signature_runner(names.SIGNATURE_IMAGES) if has_images else None
        runners[key] = (interpreter, signatures, runner)  # the runner does not own the interpreter
    if key not in runners:
        raise ValueError("it could not be loaded")
    _, signatures, runner = runners[key]
    if inputs is not None:
        return runner(**inputs)
    details = runner.get_input_details() if runner is not None else {}
    return signatures, {name: (each["shape"].tolist(), each["dtype"]) for name, each in details.items()}
