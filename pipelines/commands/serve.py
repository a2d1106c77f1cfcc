"""Command `detloom serve`: an HTTP server to try a model. Imports are late to keep the CLI fast."""

import ipaddress
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import STORED_FOLDER, NumberRange, copied_model
from detloom.pipelines.predict.score_threshold import OPTION_HELP, choose_min_score
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.pipelines.serving.server import ModelServer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_POLL_SECONDS = 0.5  # interval at which a stop request is noticed
_LAST_CALL_SECONDS = 10.0  # to finish the current call of the model at the end


@command(
    "detloom serve detloom_runs/my/serving",
    """printf '{"signature_name": "serving_encoded", "instances": [{"b64": "%s"}]}' \\""",
    """    "$(base64 < photo.jpg | tr -d '\\n')" |""",
    "    curl -d @- http://localhost:8501/v1/models/detector:predict",
)
@click.argument("model", type=STORED_FOLDER)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 admits other machines."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="0 chooses a free port.")
@click.option("--name", default="detector", show_default=True, help="Name of the model in URLs.")
@click.option(
    "--max-request-mb",
    type=NumberRange(0.001, 1024),
    default=32.0,
    show_default=True,
    help="Longer requests are refused.",
)
@click.option("--min-score", type=NumberRange(0, 1), help=f"Initial score threshold on the page. {OPTION_HELP}")
def serve(model: Path | str, host: str, port: int, name: str, max_request_mb: float, min_score: float | None) -> None:
    """Serve a model for manual tests.

    A web page accepts an image by drag and drop, and URLs accept requests of TensorFlow Serving's REST API. MODEL is an
    exported or pushed model, or a folder of versions. This is not a production server; docs/serving.md shows how to
    serve the model with TensorFlow Serving and KServe. Stop it with Ctrl-C.
    """
    from detloom.pipelines.local.console import show_log
    from detloom.pipelines.serving.page import format_page
    from detloom.pipelines.serving.served_model import load_served_model
    from detloom.pipelines.serving.server import HEALTH_PATH, ModelServer
    from detloom.trainer_module.export.predict import find_saved_model

    if _NAME.fullmatch(name) is None:
        raise InputError(f"--name: got {name!r}, allowed: a letter or digit, then up to 63 of them and of '._-'.")
    show_log()
    folder = copied_model(model)
    served = load_served_model(folder, name)
    max_request_bytes = round(max_request_mb * 2**20)
    shown_score = choose_min_score(min_score, find_saved_model(folder))
    page = format_page(served, min_score=shown_score, max_request_bytes=max_request_bytes)
    try:
        server = ModelServer(host, port, served, page, max_request_bytes)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"--host {host} --port {port}: cannot listen ({reason}); --port 0 chooses a free port."
        ) from None
    click.echo(f"{server.url}/ is the web page for {served.name}, version {served.version}.")
    signatures = ", ".join(sorted(served.signatures))
    click.echo(f"{server.url}/v1/models/{served.name}:predict accepts the signatures {signatures}.")
    click.echo(f"{server.url}{HEALTH_PATH} is the health check. Not a production server. Stop it with Ctrl-C.")
    if not ipaddress.ip_address(server.server_name).is_loopback:
        click.echo(f"warning: everyone who can reach {server.server_name} can use it without a password.", err=True)
    serve_until_stopped(server)
    click.echo("Stopped.", err=True)


def serve_until_stopped(server: "ModelServer") -> None:
    """Serve until Ctrl-C or SIGTERM, then let the current call of the model finish. Call it in the main thread."""
    is_stopping = False

    def stop(*_: Any) -> None:
        # No exception here: Python ignores an exception that is raised during a destructor.
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
