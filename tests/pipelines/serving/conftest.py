"""Fixtures: a server on a free port of this machine with a SavedModel that needs no training."""

import http.client
import io
import json
import threading

import numpy as np
import pytest
from PIL import Image

MAX_REQUEST_BYTES = 100_000


@pytest.fixture(scope="session")
def served(tiny_model_dir):
    from detloom.pipelines.serving.served_model import ServedModel

    return ServedModel(tiny_model_dir.parent, "cells")


@pytest.fixture(scope="session")
def server(served):
    from detloom.pipelines.serving.page import format_page
    from detloom.pipelines.serving.server import ModelServer

    server = ModelServer("127.0.0.1", 0, served, format_page(served, 0.25), MAX_REQUEST_BYTES)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def ask(server):
    """Return a function that sends a request and returns status, headers, and JSON or text of the response."""

    def send(method, path, content=None, headers=None):
        connection = http.client.HTTPConnection(*server.server_address, timeout=60)
        body = content if content is None or isinstance(content, bytes) else json.dumps(content)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(text) if is_json else text

    return send


@pytest.fixture(scope="session")
def encoded():
    """Return an image that is red in rows 10-20 of 40, columns 40-60 of 80, and green in rows 30-40, columns 0-20."""
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:20, 40:60] = (255, 0, 0)
    image[30:40, 0:20] = (0, 255, 0)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()
