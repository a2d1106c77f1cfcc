import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.inference import ModelFile
from detloom.components.evaluator.latency import count_model_bytes, measure_latency, summarize, time_in_turn
from detloom.schemas.errors import InputError


def test_models_alternate():
    order = []
    detect = {name: lambda images, name=name: order.append((name, images[0].encoded)) for name in ("new", "old")}
    models = {name: SimpleNamespace(detect=each) for name, each in detect.items()}
    seconds = time_in_turn(models, [b"1", b"2"])
    assert order == [("new", b"1"), ("old", b"1"), ("old", b"2"), ("new", b"2")]
    assert [len(seconds[name]) for name in models] == [2, 2]


def test_an_error_names_the_model_file(good_model_uri):
    folder = str(good_model_uri / "Format-Serving")
    with pytest.raises(InputError, match=rf"^{folder} \(new, tensorflow\): failed while"):
        measure_latency({"new": ModelFile(folder)}, [b"no image"])


def test_latency_is_summarized_in_milliseconds():
    latency = summarize([number / 1000 for number in range(101)])
    assert (latency.median_ms, latency.p95_ms, latency.num_images) == (pytest.approx(50), pytest.approx(95), 101)


def test_the_model_is_timed_on_every_image(good_model_uri):
    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file, "PNG")
    (latency,) = measure_latency(
        {"new": ModelFile(str(good_model_uri / "Format-Serving"))}, [file.getvalue()] * 3
    ).values()
    assert latency.num_images == 3
    assert 0 < latency.median_ms <= latency.p95_ms


def test_without_images_nothing_is_loaded():
    assert measure_latency({"new": ModelFile("/nowhere")}, []) == {}


def test_the_model_size_is_that_of_the_savedmodel(good_model_uri, copy_model, tmp_path):
    folder = good_model_uri / "Format-Serving"
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    copied = copy_model(tmp_path / "model")
    (copied / "model.onnx").write_bytes(b"another form")
    assert count_model_bytes(str(folder)) == count_model_bytes(str(copied)) == num_bytes
