"""Command `detloom data-service`: a server of tf.data service. Imports are late to keep the CLI fast."""

import signal
import threading

import click

from detloom.pipelines.command_line.command import command

_LAST_PORT = 65535


@command(
    "detloom data-service --host data-0  # on the machine data-0",
    "DETLOOM_DATA_SERVICE=data-0:5050,data-1:5050 detloom train ssd_mobilenet_v2_fpnlite_320x320 --examples data",
)
@click.option(
    "--host",
    required=True,
    help="Name or IP address under which trainers reach this machine. TensorFlow listens on all of its addresses.",
)
@click.option(
    "--port",
    type=click.IntRange(1, _LAST_PORT - 1),
    default=5050,
    show_default=True,
    help="Port of the address for trainers.",
)
@click.option(
    "--worker-port",
    type=click.IntRange(1, _LAST_PORT),
    help="Port that sends the batches; default: the one after --port.",
)
def data_service(host: str, port: int, worker_port: int | None) -> None:
    """Read and augment training images for other machines.

    Start it on machines with spare CPUs, and name them to the training process in DETLOOM_DATA_SERVICE. The weights are
    the same as without servers. Each server has to read the training records under the same paths as the trainer. It
    runs whatever a client asks for, without a password: keep its two ports inside a private network. Stop it with
    Ctrl-C.
    """
    from detloom.pipelines.local.console import show_log
    from detloom.trainer_module.data.data_service import SERVERS_VARIABLE, DataServer

    show_log()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = DataServer(host, port, worker_port or port + 1)
    click.echo(
        f"warning: ports {port} and {worker_port or port + 1} are open on all network interfaces, without a password; "
        "who reaches them can read and write files as this user. Admit only the trainers (firewall).",
        err=True,
    )
    click.echo(f"Makes training batches; name it to trainers with {SERVERS_VARIABLE}={host}:{port}. Stop with Ctrl-C.")
    stop.wait()
    del server
    click.echo("Stopped.", err=True)
