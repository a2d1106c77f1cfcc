import base64
import contextlib
import json
import queue
import socket
import sys

import numpy as np
import pytest
import tensorflow as tf

from detloom.pipelines.serving import server as module

PREDICT = "/v1/models/cells:predict"


def request_of(encoded, **more):
    return {"signature_name": "serving_encoded", "instances": [{"b64": base64.b64encode(encoded).decode()}], **more}


def send_raw(server, data):
    """Send the bytes of a request and return the whole response."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
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
    assert status == 200
    (found,) = answer["predictions"]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array(found[name], np.float32).tobytes() == tensor.numpy()[0].tobytes(), name


def test_columns_are_answered_with_columns(ask, image_pixels):
    _, _, answer = ask(
        "POST", "/v1/models/cells/versions/7:predict", {"inputs": {"input_tensor": [image_pixels.tolist()]}}
    )
    assert answer["outputs"]["num_detections"] == [2.0]


def test_response_has_the_time_of_the_model(ask, encoded):
    _, headers, _ = ask("POST", PREDICT, request_of(encoded))
    assert headers["Server-Timing"].startswith("model;dur=")


@pytest.mark.parametrize("path", ["/v1/models/cells", "/v1/models/cells/versions/7"])
def test_status_matches_tensorflow_serving(ask, path):
    status = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": "7", "state": "AVAILABLE", "status": status}]}
    assert ask("GET", path)[2] == expected


def test_metadata_matches_tensorflow_serving(ask):
    _, _, answer = ask("GET", "/v1/models/cells/metadata")
    assert answer["model_spec"] == {"name": "cells", "signature_name": "", "version": "7"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert sorted(signatures) == ["serving_default", "serving_encoded", "serving_examples"]
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    name = "serving_encoded_image_bytes:0"
    assert signatures["serving_encoded"]["inputs"] == {
        "image_bytes": {"dtype": "DT_STRING", "tensor_shape": shape, "name": name}
    }
    assert signatures["serving_encoded"]["outputs"]["detection_scores"]["dtype"] == "DT_FLOAT"
    assert signatures["serving_encoded"]["method_name"] == "tensorflow/serving/predict"


def test_health_check(ask):
    assert ask("GET", "/healthz")[::2] == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/models/cells", "/v1/models/other"])
def test_head_is_answered_like_get_without_a_body(server, ask, path):
    status, headers, _ = ask("GET", path)
    head, _, body = send_raw(server, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).partition("\r\n\r\n")
    assert head.split(" ")[1] == str(status)
    assert f"Content-Length: {headers['Content-Length']}" in head
    assert body == ""


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models/other", 404, "allowed: /v1/models/cells/versions/7"),
        ("GET", "/v1/models/cells/versions/8", 404, "no such model"),
        ("GET", "/v1/models/cells/labels/stable", 404, "no such path"),
        ("GET", "/../../etc/passwd", 404, "no such path"),
        ("GET", "/v1/models/cells/versions/7/../../../../saved_model.pb", 404, "no such path"),
        ("GET", PREDICT, 405, "POST"),
        ("POST", "/v1/models/cells:classify", 400, "got :classify, allowed with POST: :predict"),
        ("POST", "/v1/models/cells", 400, "got no verb"),
        ("POST", PREDICT, 400, "'instances'"),
        ("DELETE", "/v1/models/cells", 501, "Unsupported method"),
    ],
)
def test_other_paths_and_methods_are_refused_as_json(ask, method, path, status, message):
    found, headers, answer = ask(method, path, {} if method == "POST" else None)
    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert message in answer["error"]


@pytest.mark.reliability("hostile input", "serve")
def test_client_receives_the_refusal_of_a_request_that_is_too_long(ask):
    status, _, answer = ask("POST", PREDICT, b"x" * 3_000_000)
    assert status == 413
    assert "3000000 bytes, allowed: 100000 (--max-request-mb)" in answer["error"]


def test_expect_100_is_refused_before_a_long_body(server):
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n"
    answer = send_raw(server, head.encode())
    assert answer.startswith("HTTP/1.1 413")


def test_expect_100_is_continued(server):
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{{}}"
    assert send_raw(server, head.encode()).startswith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400")


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("", 411),
        ("Transfer-Encoding: chunked\r\n", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", 411),
        ("Content-Length: -1\r\n", 400),
        ("Content-Length: +2\r\n", 400),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        ("Content-Length: 5\r\n", 400),
    ],
)
def test_body_without_a_valid_length_is_refused(server, headers, status):
    data = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{{}}"
    assert send_raw(server, data.encode()).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.reliability("hostile input", "serve")
def test_invalid_request_line_is_refused_as_json(server):
    assert '{"error": "Bad request' in send_raw(server, b"what is this\r\n\r\n")


def test_invalid_url_is_refused(server):
    assert send_raw(server, b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith("HTTP/1.1 404 ")


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("[::1]:8501", 200), ("evil.example:80", 403)])
def test_unknown_host_name_is_refused(ask, host, status):
    assert ask("GET", "/healthz", headers={"Host": host})[0] == status


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example"])
def test_request_from_another_site_is_refused(ask, encoded, origin):
    status, headers, answer = ask("POST", PREDICT, request_of(encoded), headers={"Origin": origin})
    assert status == 403
    assert answer["error"].startswith("Origin: ")
    assert "Access-Control-Allow-Origin" not in headers


def test_request_from_the_own_page_is_allowed(ask, server, encoded):
    status, *_ = ask("POST", PREDICT, request_of(encoded), headers={"Origin": server.url})
    assert status == 200


def test_page_is_sent_with_its_policy(ask):
    status, headers, page = ask("GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'; connect-src 'self'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


@pytest.mark.reliability("hostile input", "serve")
def test_body_that_does_not_end_times_out(server, monkeypatch):
    monkeypatch.setattr(module, "_RECEIVE_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.reliability("hostile input", "serve")
def test_headers_that_do_not_end_time_out(server, monkeypatch):
    monkeypatch.setattr(module, "_RECEIVE_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
        assert connection.recv(100) == b""


@pytest.mark.reliability("hostile input", "serve")
def test_excess_connection_is_refused_and_later_ones_are_accepted(server, ask):
    held = [socket.create_connection(("127.0.0.1", server.server_port), timeout=60) for _ in range(17)]
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as extra:
            assert extra.recv(100).startswith(b"HTTP/1.1 503 ")
    finally:
        for connection in held:
            connection.close()
    for _ in range(1000):  # until the server has noticed the closed connections
        with contextlib.suppress(OSError):
            if ask("GET", "/healthz")[0] == 200:
                return
    pytest.fail("no further connection was accepted")


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


@pytest.mark.reliability("hostile input", "serve")
def test_control_characters_of_a_request_are_escaped_in_the_log(server, caplog):
    with caplog.at_level("INFO", logger="detloom"):
        send_raw(server, b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "\x1b" not in caplog.text
    assert "\\x1b[31m" in caplog.text


def test_url_of_an_ipv6_server_has_brackets(served, server):
    try:
        other = module.ModelServer("::1", 0, served, server.page, 1000)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert other.url == f"http://[::1]:{other.server_port}"
    other.server_close()


def test_content_length_matches_the_json(ask, encoded):
    _, headers, answer = ask("POST", PREDICT, request_of(encoded))
    assert int(headers["Content-Length"]) == len(json.dumps(answer))
