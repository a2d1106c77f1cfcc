"""tf.data service: other processes or machines read, augment and batch the training images.

Each server gets every n-th batch to make, and the trainer takes them in turn. So the batches, and the weights, are
those of a training run without servers. A server holds its place in the stream in memory only. When it restarts,
TensorFlow reports that it no longer knows the stream; training ends with an error, and resumes from its checkpoint.
https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.errors import InputError

SERVERS_VARIABLE = "DETLOOM_DATA_SERVICE"  # addresses: host:port, separated by commas
_BATCHES_AHEAD = 2  # of each server
_CONNECT_SECONDS, _WATCH_SECONDS = 5.0, 10.0
_LOGGER = logging.getLogger("detloom")


class ServerAddress(NamedTuple):
    """Address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def servers_in(environment: Mapping[str, str]) -> tuple[ServerAddress, ...]:
    """Return the servers that `DETLOOM_DATA_SERVICE` names; () if it is not set.

    Raises:
        InputError: if its value is invalid.
    """
    texts = [text.strip() for text in environment.get(SERVERS_VARIABLE, "").split(",") if text.strip()]
    servers = tuple(_parse(text) for text in texts)
    if len(set(servers)) != len(servers):
        raise InputError(f"{SERVERS_VARIABLE}: got {', '.join(texts)}, allowed: each address once.")
    return servers


def _parse(text: str) -> ServerAddress:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError(
            f"{SERVERS_VARIABLE}: got {text!r}, allowed: addresses such as data-0:5050, separated by commas."
        )
    return ServerAddress(host, int(port))


def check_servers(servers: Sequence[ServerAddress]) -> None:
    """Raise InputError if a server does not answer."""
    for server in servers:
        if reason := _why_unreachable(server):
            raise InputError(
                f"{SERVERS_VARIABLE}: {server} does not answer ({reason}); start `detloom data-service --port "
                f"{server.port}` there, or remove the address."
            )


def read_from_servers(servers: Sequence[ServerAddress], batches: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    """Return the batches of several data sets in turn, each made by the server with its number."""
    service = tf.data.experimental.service
    remote = [
        part.apply(service.distribute(service.ShardingPolicy.OFF, f"grpc://{server}", compression=None))
        for server, part in zip(servers, batches, strict=True)
    ]
    turns = tf.data.Dataset.range(len(servers)).repeat()
    ahead = [part.prefetch(_BATCHES_AHEAD) for part in remote]
    return tf.data.Dataset.choose_from_datasets(ahead, turns, stop_on_empty_dataset=False)


@contextlib.contextmanager
def lost_servers_as_input_errors(servers: Sequence[ServerAddress]) -> Iterator[None]:
    """Convert TensorFlow's error of a server that restarted, or that does not find a file, to an InputError."""
    try:
        yield
    except tf.errors.NotFoundError as error:
        if not servers:
            raise
        cause = " ".join(error.message.split())
        raise InputError(
            f"tf.data service ({', '.join(map(str, servers))}): a server restarted, and so lost its place in the "
            f"training data, or it does not find them under the paths of the trainer ({cause}). Run the same command "
            "again: training resumes from its last checkpoint."
        ) from error


@contextlib.contextmanager
def watched_servers(servers: Sequence[ServerAddress]) -> Iterator[None]:
    """Log a warning while a server does not answer: TensorFlow retries silently."""
    stop = threading.Event()

    def watch() -> None:
        silent: set[ServerAddress] = set()
        while not stop.wait(_WATCH_SECONDS):
            for server in servers:
                reason = _why_unreachable(server)
                if reason and server not in silent:
                    _LOGGER.warning("tf.data service: %s does not answer (%s); training waits for it.", server, reason)
                    silent.add(server)
                elif not reason and server in silent:
                    _LOGGER.info("tf.data service: %s answers again.", server)
                    silent.remove(server)

    thread = threading.Thread(target=watch, name="watch the data service", daemon=True)
    if servers:
        thread.start()
    try:
        yield
    finally:
        stop.set()


def _why_unreachable(server: ServerAddress) -> str:
    """Return why no connection can be opened; empty if the server accepts one."""
    try:
        with socket.create_connection(server, timeout=_CONNECT_SECONDS):
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


class DataServer:
    """A dispatcher and a worker of tf.data service in this process, for `read_from_servers`."""

    def __init__(self, host: str, port: int, worker_port: int) -> None:
        """Start to listen on all network interfaces.

        Args:
            host: name or IP address under which trainers reach this machine.
            port, worker_port: trainers connect to both.

        Raises:
            InputError: if a port is in use, or both are the same.
        """
        if port == worker_port:
            raise InputError(f"port and worker port: got {port} for both, allowed: two ports.")
        for number in (port, worker_port):
            _check_free(number)
        service = tf.data.experimental.service
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
        dispatcher, worker = f"localhost:{port}", str(ServerAddress(host, worker_port))
        self._worker = service.WorkerServer(service.WorkerConfig(dispatcher, worker, worker_port))


def _check_free(port: int) -> None:
    """Raise InputError if the port is in use: TensorFlow would share it with the other process."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise InputError(f"port {port}: cannot listen ({os.strerror(error.errno or 0)}); choose another.") from None
