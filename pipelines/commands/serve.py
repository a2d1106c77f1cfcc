"""Command `detloom serve`: an HTTP server to try a model. Imports are late to keep the CLI fast."""

import contextlib
import re
import signal
from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import STORED_FOLDER, NumberRange, copied_model, runtime_option
from detloom.pipelines.predict.score_threshold import OPTION_HELP, choose_min_score
from detloom.pipelines.serving.request_limits import DEFAULT_MAX_REQUEST_MB
from detloom.schemas.contracts.runtime_names import RuntimeName
from detloom.schemas.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LAST_CALLS_SECONDS = 10.0  # to answer the requests that were accepted, and then to finish calls of the model


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
    default=DEFAULT_MAX_REQUEST_MB,
    show_default=True,
    help="Longer requests are refused.",
)
@runtime_option
@click.option("--min-score", type=NumberRange(0, 1), help=f"Initial score threshold on the page. {OPTION_HELP}")
def serve(
    model: Path | str,
    host: str,
    port: int,
    name: str,
    max_request_mb: float,
    runtime: RuntimeName,
    min_score: float | None,
) -> None:
    """Serve a model for manual tests.

    A web page accepts an image by drag and drop, and URLs accept requests of TensorFlow Serving's REST API. MODEL is an
    exported or pushed model, or a folder of versions. This is not a production server; docs/serving.md shows how to
    serve the model with TensorFlow Serving and KServe. Stop it with Ctrl-C.
    """
    from detloom.pipelines.local.console import show_log
    from detloom.pipelines.serving.page import format_page
    from detloom.pipelines.serving.predict_request import PREDICT_REQUEST
    from detloom.pipelines.serving.served_model import ServedModel
    from detloom.pipelines.serving.server import ModelServer
    from detloom.trainer_module.inference.model_files import find_saved_model

    if _NAME.fullmatch(name) is None:
        raise InputError(f"--name: got {name!r}, allowed: a letter or digit, then up to 63 of them and of '._-'.")
    show_log()
    folder = copied_model(model)
    served = ServedModel(folder, name, runtime)
    max_request_bytes = round(max_request_mb * 2**20)
    page = format_page(served, choose_min_score(min_score, find_saved_model(folder)))
    try:
        server = ModelServer(host, port, served, page, max_request_bytes)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"--host {host} --port {port}: cannot listen ({reason}); --port 0 chooses a free port."
        ) from None
    click.echo(f"{server.url}/ is the web page for {served.name}, version {served.version}.")
    click.echo(f"{server.url}/v1/models/{served.name}:predict accepts encoded images: {PREDICT_REQUEST}")
    click.echo("Not a production server. Stop it with Ctrl-C.")
    if not server.is_local:
        click.echo(f"warning: everyone who can reach {server.url} can use it without a password.", err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
    server.wait_until_answered(_LAST_CALLS_SECONDS)
    served.wait_until_idle(_LAST_CALLS_SECONDS)
    click.echo("Stopped.", err=True)
