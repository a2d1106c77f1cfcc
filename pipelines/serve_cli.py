"""`detloom serve`: an HTTP server for trying a model by hand. Imports are late."""

import ipaddress
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.pipelines.number_range import NumberRange
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.pipelines.serving.server import ModelServer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_POLL_SECONDS = 0.5  # between looks at whether to stop
_LAST_CALL_SECONDS = 10.0  # for the model's call in progress when the server ends


@click.command()
@click.argument("model", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is seen by other machines."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="0 picks one that is free."
)
@click.option("--name", default="detector", show_default=True, help="What the model is called in addresses.")
@click.option(
    "--max-request-mb",
    type=NumberRange(0.001, 1024),
    default=32.0,
    show_default=True,
    help="A longer request is refused.",
)
@click.option(
    "--min-score", type=NumberRange(0, 1), default=0.5, show_default=True, help="Where the page's slider begins."
)
def serve(model: Path, host: str, port: int, name: str, max_request_mb: float, min_score: float) -> None:
    """Try MODEL by hand: a page to drop a picture on, and TensorFlow Serving's REST interface.

    MODEL is an exported or pushed model, or the folder of its versions. This is no production server; docs/serving.md
    has the same model under TensorFlow Serving and KServe. Ctrl-C ends it.

    \b
    detloom serve detloom_runs/my/serving
    curl http://localhost:8501/v1/models/detector/metadata
    """
    from detloom.pipelines.console import show_log
    from detloom.pipelines.serving.page import format_page
    from detloom.pipelines.serving.served_model import load_served_model
    from detloom.pipelines.serving.server import HEALTH_PATH, ModelServer

    if _NAME.fullmatch(name) is None:
        raise InputError(f"--name: got {name!r}, allowed: a letter or digit, then up to 63 of them and of '._-'.")
    show_log()
    served = load_served_model(model, name)
    max_request_bytes = round(max_request_mb * 2**20)
    page = format_page(served, min_score=min_score, max_request_bytes=max_request_bytes)
    try:
        server = ModelServer(host, port, served, page, max_request_bytes)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot listen there ({reason}); --port 0 picks one.") from None
    click.echo(f"{server.url}/ is the page for trying {served.name}, version {served.version}.")
    click.echo(f"{server.url}/v1/models/{served.name}:predict takes signatures {', '.join(sorted(served.signatures))}.")
    click.echo(f"{server.url}{HEALTH_PATH} answers while it runs. No production server. Ctrl-C ends it.")
    if not ipaddress.ip_address(server.server_name).is_loopback:
        click.echo(f"warning: whoever reaches {server.server_name} can use it; there is no password.", err=True)
    serve_until_stopped(server)
    click.echo("Ended.", err=True)


def serve_until_stopped(server: "ModelServer") -> None:
    """Answer until Ctrl-C or SIGTERM; the model's call in progress may end. To be called in the main thread."""
    is_stopping = False

    def stop(*_: Any) -> None:
        # Not an exception: raised in the middle of a destructor, Python would report it and go on.
        nonlocal is_stopping
        is_stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    server.timeout = _POLL_SECONDS
    try:
        while not is_stopping:
            server.handle_request()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.server_close()
        server.model.wait_until_idle(_LAST_CALL_SECONDS)
