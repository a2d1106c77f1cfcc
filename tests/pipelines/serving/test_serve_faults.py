"""Serving of a damaged or read-only model, with a jumping clock, and of a version that is removed meanwhile."""

import base64
import json
import shutil
import threading

import pytest

from detloom.pipelines.serving import server as server_module
from detloom.pipelines.serving.served_model import load_served_model
from detloom.schemas.errors import InputError

PREDICT = "/v1/models/cells:predict"


def request_of(encoded):
    return {"signature_name": "serving_encoded", "instances": [{"b64": base64.b64encode(encoded).decode()}]}


@pytest.mark.reliability("torn file", "serve")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("pattern", ["saved_model.pb", "variables/*.index", "variables/*.data-*", "assets/*.pbtxt"])
def test_truncated_model_is_refused_in_one_sentence(tiny_model_dir, tmp_path, pattern, share):
    model_dir = shutil.copytree(tiny_model_dir, tmp_path / "7")
    (path,) = model_dir.glob(pattern)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        load_served_model(tmp_path, "cells")
    assert "\n" not in str(caught.value)


@pytest.mark.reliability("read-only", "serve")
def test_model_on_a_read_only_disk_is_served(tiny_model_dir, disk, encoded, served):
    shutil.copytree(tiny_model_dir, disk.folder / "7")
    disk.make_read_only()
    body = json.dumps(request_of(encoded)).encode()
    assert load_served_model(disk.folder, "cells").predict(body)[0] == served.predict(body)[0]


@pytest.mark.reliability("full disk", "serve")
def test_model_on_a_full_disk_is_served(tiny_model_dir, disk, encoded, served):
    shutil.copytree(tiny_model_dir, disk.folder / "7")
    disk.fill()
    body = json.dumps(request_of(encoded)).encode()
    assert load_served_model(disk.folder, "cells").predict(body)[0] == served.predict(body)[0]


@pytest.mark.reliability("clock jump", "serve")
def test_requests_are_answered_whatever_the_clock(ask, encoded, jumping_clock, monkeypatch):
    """A deadline that a wall clock gives would have passed after the first jump of a day."""
    monkeypatch.setattr(server_module, "_RECEIVE_SECONDS", 5.0)
    for _ in range(6):
        status, headers, answer = ask("POST", PREDICT, request_of(encoded))
        assert (status, len(answer["predictions"])) == (200, 1)
        assert float(headers["Server-Timing"].removeprefix("model;dur=")) >= 0


@pytest.mark.reliability("concurrent runs", "serve")
def test_loaded_version_is_served_after_its_folder_was_removed(tiny_model_dir, tmp_path, encoded, served):
    """As a push does with `push.keep_versions`."""
    shutil.copytree(tiny_model_dir, tmp_path / "7")
    loaded = load_served_model(tmp_path, "cells")
    shutil.rmtree(tmp_path / "7")
    body = json.dumps(request_of(encoded)).encode()
    assert loaded.predict(body)[0] == served.predict(body)[0]


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
