"""Run models of files that are not trusted in a process of their own, with limits on time and memory.

A damaged or hostile file can end or block the process that runs it, or use all memory.
"""

import contextlib
import functools
import hashlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

from detloom.schemas.contracts.arrays import Array
from detloom.trainer_module.runtime.host_memory import usable_bytes

# To import TensorFlow, which takes a minute on a busy machine, and for a batch: presets need seconds.
_MAX_SECONDS = 180
_MAX_OUTPUT_BYTES = 1 << 30
_Arrays = Mapping[str, Array]
_LOCK = threading.Lock()

Engine = Literal["tflite", "onnxruntime", "openvino"]


def _renew_lock() -> None:
    """Replace the lock in a forked process: a thread that does not exist there may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Session(Protocol):
    """A model in the process; `description` is what it says of its inputs and outputs."""

    description: Any

    def run(self, inputs: _Arrays) -> dict[str, Array]: ...


class ModelInProcess:
    """A loaded model; the process is started again after it was ended, and loads the model again.

    Attributes:
        description: that of the engine's `Session`.
    """

    def __init__(self, engine: Engine, content: bytes) -> None:
        """Load a model.

        Raises:
            RuntimeError: with the reason, if it cannot be loaded.
        """
        self._engine, self._content = engine, content
        self._key = f"{engine} {hashlib.sha256(content).hexdigest()}"
        self.description = self.run(None)

    def run(self, inputs: _Arrays | None) -> Any:
        """Return the outputs for a batch by name; without inputs, return the description.

        Raises:
            RuntimeError: with the reason, if the call fails, ends its process or takes too long.
        """
        with _LOCK:
            process = _process_of(os.getpid())  # a forked process has its own
            if process.has_ended():
                process.end()
                process = _process_of(os.getpid())
            try:
                content = None if self._key in process.loaded else self._content
                process.connection.send((self._engine, self._key, content, inputs))
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

    def has_ended(self) -> bool:
        """Return whether the kernel ended the process while it was idle, see `_limit_memory`."""
        return self._process.poll() is not None

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
    sessions: dict[str, Session] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    while True:
        signal.alarm(0)
        try:
            engine, key, content, inputs = connection.recv()
        except EOFError:
            return
        signal.alarm(_MAX_SECONDS)
        try:
            if content is not None:
                sessions[key] = _load(engine, content)
            connection.send(sessions[key].description if inputs is None else _run(sessions[key], inputs))
        except Exception as error:  # engines raise errors of many types
            connection.send(str(error) or type(error).__name__)


def _run(session: Session, inputs: _Arrays) -> dict[str, Array]:
    outputs = session.run(inputs)
    if sum(value.nbytes for value in outputs.values()) > _MAX_OUTPUT_BYTES:  # the other process has no limit
        raise ValueError(f"it returned more than {_MAX_OUTPUT_BYTES} bytes")
    return outputs


def _limit_memory() -> None:
    """Let a model that needs too much memory fail, and let the kernel end this process before all others."""
    with contextlib.suppress(ValueError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (usable_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _load(engine: Engine, content: bytes) -> Session:
    """Load a model. The imports are late, so that the time limit covers them."""
    if engine == "tflite":
        from detloom.trainer_module.inference.tflite_session import TfliteSession

        return TfliteSession(content)
    from detloom.trainer_module.inference.onnx_sessions import OnnxRuntimeSession, OpenVinoSession

    return OnnxRuntimeSession(content) if engine == "onnxruntime" else OpenVinoSession(content)
