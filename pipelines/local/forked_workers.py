"""Start the workers of Beam's direct runner by fork, so that they do not import Beam and the job's modules again.

A server process is forked before gRPC runs in this process, because a process that has threads of gRPC cannot be
forked. For each worker that Beam starts, a small client process sends the worker's environment to the server, which
forks the worker; the client ends with it. Server and workers end with this process.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORKER_VARIABLES = (
    "CONTROL_API_SERVICE_DESCRIPTOR", "LOGGING_API_SERVICE_DESCRIPTOR", "PIPELINE_OPTIONS", "WORKER_ID",
)  # fmt: skip
_DONE = b"done"
# Exits with 0 if the worker says that it is done, with 1 if the connection ends before.
_CLIENT = (
    "import json, os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    "s.sendall(json.dumps({k: os.environ[k] for k in sys.argv[2:] if k in os.environ}).encode()); "
    f"s.shutdown(socket.SHUT_WR); sys.exit(s.recv(9) != {_DONE!r})"
)
# of gRPC, and of the client of buckets
_THREADS = (
    "grpc_",
    "event_engine",
    "default-executo",
    "resolver-execut",
    "tokio-rt-worker",
)
_REAP_SECONDS = 1.0  # between two looks for workers that have ended
_STOP_SECONDS = 5.0  # to wait for the last worker at the end of the main process
_TASKS = Path("/proc/self/task")


def build_runner() -> Any:
    """Return a Beam runner with forked workers, as many as `direct_num_workers`; None if this process cannot fork now.

    The first call forks the server. Modules that are imported before need not be imported by the workers.
    """
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    _listen_on_this_machine_only()
    command = _start_server()
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command)) if command else None


@functools.cache
def _listen_on_this_machine_only() -> None:
    """Bind the ports between Beam and its workers, which have no password, to loopback; Beam binds all interfaces."""
    from apache_beam.runners.portability import local_job_service
    from apache_beam.runners.portability.fn_api_runner import worker_handlers

    grpc: Any = worker_handlers.grpc

    def make_server(*arguments: Any, **options: Any) -> Any:
        server = grpc.server(*arguments, **options)
        add_port = server.add_insecure_port
        server.add_insecure_port = lambda address: add_port(address.replace("[::]:", "127.0.0.1:"))
        return server

    for module in (worker_handlers, local_job_service):
        module.grpc = types.SimpleNamespace(**{**vars(grpc), "server": make_server})


@functools.cache
def _start_server() -> str:
    """Return the shell command that starts one worker; "" if this process cannot fork."""
    if not _can_fork():
        return ""
    folder = tempfile.mkdtemp(prefix="detloom-workers-")
    address = os.path.join(folder, "socket")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
    except OSError:  # the path of the temporary folder is too long for a socket
        listener.close()
        os.rmdir(folder)
        return ""
    listener.listen()
    ends_with_us, lifeline = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of numpy's threads, which wait for work
        server = os.fork()
    if server == 0:
        os.close(lifeline)
        _run_and_exit(functools.partial(_serve, listener, ends_with_us, folder))
    listener.close()
    os.close(ends_with_us)
    # `lifeline` is closed when this process ends, however it ends.
    atexit.register(_stop_server, server, lifeline)
    return "exec " + shlex.join([sys.executable, "-I", "-S", "-c", _CLIENT, address, *_WORKER_VARIABLES])


def _stop_server(server: int, lifeline: int) -> None:
    os.close(lifeline)
    end = time.monotonic() + _STOP_SECONDS
    while os.waitpid(server, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)


def _can_fork() -> bool:
    """Return whether this process has no threads of gRPC or a bucket's client, and no other Python threads.

    Their locks would stay held in the forked process.
    """
    if not _TASKS.is_dir() or threading.active_count() > 1:
        return False
    names = [(task / "comm").read_text() for task in _TASKS.iterdir()]
    return not any(name.startswith(_THREADS) for name in names)


def _serve(listener: socket.socket, lifeline: int, folder: str) -> None:
    """Fork a worker for each connection, until the writing end of `lifeline` is closed; then wait for the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the main process, and that ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        while True:
            ready, _, _ = select.select([listener.fileno(), lifeline], [], [], _REAP_SECONDS)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            if lifeline in ready:
                return
            if not ready:
                continue
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                os.close(lifeline)
                _run_and_exit(functools.partial(_work, connection))
            connection.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # the connection to the main process is closed, so they end


def _work(connection: socket.socket) -> None:
    """Run Beam's worker with the environment that the client sends."""
    from apache_beam.runners.worker import sdk_worker_main

    with connection.makefile("rb") as stream:
        os.environ.update(json.load(stream))
    logging.getLogger().handlers.clear()  # Beam's worker sends its log to the main process
    sdk_worker_main.main([])
    with contextlib.suppress(OSError):
        connection.sendall(_DONE)


def _run_and_exit(run: Callable[[], None]) -> None:
    """Run a function and end this forked process, without what the main process does at its end."""
    code = 1
    try:
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
