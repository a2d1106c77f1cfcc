"""A server on a free port of this machine, over a real SavedModel that needs no training."""

import http.client
import importlib.util
import io
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

_SPEC = importlib.util.spec_from_file_location(
    "tiny_detector", Path(__file__).parents[2] / "components" / "evaluator" / "tiny_detector.py"
)
tiny_detector = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny_detector)

MAX_REQUEST_BYTES = 100_000


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """Version 7 of a model that finds the red and the green area of a picture."""
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "7")


@pytest.fixture(scope="session")
def served(model_dir):
    from detloom.pipelines.serving.served_model import load_served_model

    return load_served_model(model_dir.parent, "cells")


@pytest.fixture(scope="session")
def server(served):
    from detloom.pipelines.serving.page import format_page
    from detloom.pipelines.serving.server import ModelServer

    page = format_page(served, min_score=0.5, max_request_bytes=MAX_REQUEST_BYTES)
    server = ModelServer("127.0.0.1", 0, served, page, MAX_REQUEST_BYTES)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def ask(server):
    """`ask("GET", path)` or `ask("POST", path, {...})`: status, headers, and the JSON or the text of the answer."""

    def send(method, path, content=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        body = content if content is None or isinstance(content, bytes) else json.dumps(content)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(text) if is_json else text

    return send


@pytest.fixture(scope="session")
def picture():
    """Red in rows 10 to 20 of 40 and columns 40 to 60 of 80, green in rows 30 to 40 and columns 0 to 20."""
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:20, 40:60] = (255, 0, 0)
    image[30:40, 0:20] = (0, 255, 0)
    return image


@pytest.fixture(scope="session")
def encoded(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()
