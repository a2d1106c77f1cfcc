import base64
import queue
import re
import socket
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from detloom.pipelines.serving import request_limits

MODEL = "/v1/models/cells"
PREDICT = f"{MODEL}:predict"
SHORT_BODY = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{"
SHORT_HEAD = "GET / HTTP/1.1\r\nHost: local"


def request_of(encoded):
    return {"signature_name": "serving_encoded", "instances": [{"b64": base64.b64encode(encoded).decode()}]}


def send_raw(server, data):
    """Send the bytes of a request and return the whole response."""
    with socket.create_connection(server.server_address, timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received.decode()


def test_detections_over_http_equal_those_of_the_model_bit_for_bit(ask, tiny_model_dir, encoded):
    expected = tf.saved_model.load(str(tiny_model_dir)).signatures["serving_encoded"](
        image_bytes=tf.constant([encoded])
    )
    status, _, answer = ask("POST", PREDICT, request_of(encoded))
    assert (status, answer) == (200, ask("POST", f"{MODEL}/versions/7:predict", request_of(encoded))[2])
    (found,) = answer["predictions"]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array(found[name], np.float32).tobytes() == tensor.numpy()[0].tobytes(), name


@pytest.mark.parametrize("path", [MODEL, f"{MODEL}/versions/7"])
def test_status_matches_tensorflow_serving(ask, path):
    status = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": "7", "state": "AVAILABLE", "status": status}]}
    assert ask("GET", path)[2] == expected


def test_metadata_matches_tensorflow_serving(ask):
    _, _, answer = ask("GET", f"{MODEL}/metadata")
    assert answer["model_spec"] == {"name": "cells", "signature_name": "", "version": "7"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert sorted(signatures) == ["serving_default", "serving_encoded", "serving_examples"]
    encoded = signatures["serving_encoded"]
    shape, name = {"dim": [{"size": "-1"}]}, "serving_encoded_image_bytes:0"
    assert encoded["inputs"] == {"image_bytes": {"dtype": "DT_STRING", "tensor_shape": shape, "name": name}}
    assert encoded["outputs"]["detection_scores"]["dtype"] == "DT_FLOAT"
    assert encoded["method_name"] == "tensorflow/serving/predict"


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/cellsx", 404),
        ("GET", f"{MODEL}/versions/8", 404),
        ("GET", f"{MODEL}/labels/stable", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", f"{MODEL}/versions/7/../../../../saved_model.pb", 404),
        ("GET", PREDICT, 405),
        ("POST", "/", 405),
        ("POST", MODEL, 405),
        ("POST", f"{MODEL}:classify", 404),
        ("POST", PREDICT, 400),
        ("DELETE", MODEL, 501),
    ],
)
def test_other_paths_and_methods_are_refused_as_json(ask, method, path, status):
    found, headers, answer = ask(method, path, {} if method == "POST" else None)
    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert answer["error"]


@pytest.mark.reliability("hostile input", "serve")
def test_client_receives_the_refusal_of_a_request_that_is_too_long(ask):
    status, _, answer = ask("POST", PREDICT, b"x" * 3_000_000)
    assert status == 413
    assert re.search("3000000 bytes, .*100000 .*--max-request-mb", answer["error"])


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", 411),
        ("Content-Length: -1\r\n", 411),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", 411),
        ("Content-Length: 5\r\n", 408),
        ("Content-Length: 100000\r\n", 408),
        ("Content-Length: 100001\r\n", 413),
        ("Content-Length: 2\r\n", 400),  # {} is read, and is no request
    ],
)
def test_only_a_body_of_the_stated_length_is_read(server, headers, status):
    data = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{{}}"
    assert send_raw(server, data.encode()).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.reliability("hostile input", "serve")
def test_invalid_request_line_is_refused_as_json_and_control_characters_are_escaped_in_the_log(server, caplog):
    assert '{"error": "Bad request' in send_raw(server, b"what is this\r\n\r\n")
    with caplog.at_level("INFO", logger="detloom"):
        send_raw(server, b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "\x1b" not in caplog.text
    assert "\\x1b[31m" in caplog.text


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(("host", "status"), [("LOCALHOST", 200), ("127.0.0.1:80", 200), ("evil.example:80", 403)])
def test_unknown_host_name_is_refused(ask, host, status):
    assert ask("GET", MODEL, headers={"Host": host})[0] == status


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example"])
def test_request_from_another_site_is_refused(ask, encoded, origin):
    status, headers, answer = ask("POST", PREDICT, request_of(encoded), headers={"Origin": origin})
    assert status == 403
    assert answer["error"].startswith("Origin: ")
    assert "Access-Control-Allow-Origin" not in headers


def test_the_page_is_sent_with_its_policy_and_may_send_requests(ask, server, encoded):
    status, headers, page = ask("GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'; connect-src 'self'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert ask("POST", PREDICT, request_of(encoded), headers={"Origin": server.url})[0] == 200


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(("data", "answer"), [(SHORT_BODY, b"HTTP/1.1 408 "), (SHORT_HEAD, b"HTTP/1.1 403 ")])
def test_a_request_that_does_not_end_times_out(server, monkeypatch, data, answer):
    monkeypatch.setattr(request_limits, "REQUEST_SECONDS", 0.05)
    with socket.create_connection(server.server_address, timeout=60) as connection:
        connection.sendall(data.encode())
        assert connection.recv(100).startswith(answer)


def send_a_gigabyte(connection):
    for _ in range(1000):
        connection.sendall(bytes(1_000_000))


@pytest.mark.reliability("hostile input", "serve")
def test_a_client_that_does_not_stop_sending_is_disconnected(server, monkeypatch):
    monkeypatch.setattr(request_limits, "REQUEST_SECONDS", 0.05)
    with socket.create_connection(server.server_address, timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(ConnectionError):
            send_a_gigabyte(connection)


@pytest.mark.reliability("clock jump", "serve")
def test_requests_are_answered_whatever_the_clock(ask, encoded, jumping_clock):
    for _ in range(6):
        status, _, answer = ask("POST", PREDICT, request_of(encoded))
        assert (status, len(answer["predictions"])) == (200, 1)


@pytest.mark.reliability("concurrent runs", "serve")
def test_simultaneous_requests_get_their_own_answers(ask, encoded):
    _, _, expected = ask("POST", PREDICT, request_of(encoded))
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask("POST", PREDICT, request_of(encoded)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(status, answer) for status, _, answer in answers] == [(200, expected)] * 8


@pytest.mark.reliability("kill", "serve")
def test_the_end_waits_for_requests_that_are_being_answered(ask, server, encoded, monkeypatch):
    answer_now, answers = threading.Event(), []
    monkeypatch.setattr(server.model, "predict", lambda body: answer_now.wait(60) and {"predictions": []})
    threads = [threading.Thread(target=lambda: answers.append(ask("POST", PREDICT, {}))) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(server._answering) < 3:
        time.sleep(0.01)
    server.wait_until_answered(0.01)
    assert answers == []
    answer_now.set()
    server.wait_until_answered(60)
    assert not any(thread.is_alive() for thread in server._answering)
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in answers] == [200] * 3


def test_internal_error_is_reported_and_logged(ask, server, monkeypatch):
    def fail(body):
        raise KeyError("ours")

    escaped = queue.SimpleQueue()
    monkeypatch.setattr(server.model, "predict", fail)
    monkeypatch.setattr(server, "handle_error", lambda *_: escaped.put(sys.exc_info()[1]))
    status, _, answer = ask("POST", PREDICT, {})
    assert status == 500
    assert "ours" not in answer["error"]
    assert isinstance(escaped.get(timeout=60), KeyError)
