import base64
import json
import shutil
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf

from detloom.pipelines.serving.request_limits import RequestError
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas.errors import InputError


def body_of(*images):
    rows = [{"b64": base64.b64encode(image).decode()} for image in images]
    return json.dumps({"signature_name": "serving_encoded", "instances": rows}).encode()


def test_version_is_the_number_of_the_folder(served):
    assert (served.name, served.version, served.label_map.names) == ("cells", 7, ("red", "green"))


def test_each_image_gets_its_detections(served, encoded):
    first, second = served.predict(body_of(encoded, encoded))["predictions"]
    assert first == second
    # Rows 10 to 20 of 40 and columns 40 to 60 of 80; rows 30 to 40 and columns 0 to 20.
    assert first["detection_boxes"] == [[0.25, 0.5, 0.5, 0.75], [0.75, 0.0, 1.0, 0.25]]
    assert (first["detection_classes"], first["num_detections"]) == ([1.0, 2.0], 2.0)


def damage_pixels(png):
    """Empty the compressed pixels of a PNG and correct the checksum, so that its headers are valid."""
    start, end = png.index(b"IDAT"), png.index(b"IEND") - 8
    chunk = b"IDAT" + bytes(end - start - 4)
    return png[:start] + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[end + 4 :]


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: b"GIF89a", r"image_bytes\[1\]: .*GIF"),  # refused before the model
        (lambda _: b"nothing", r"image_bytes\[1\]: "),
        (damage_pixels, r"model rejected .*PNG"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused(served, encoded, damage, message):
    with pytest.raises(RequestError, match=message) as caught:
        served.predict(body_of(encoded, damage(encoded)))
    assert caught.value.status == 400
    assert "\n" not in caught.value.message


def test_a_failure_of_the_model_is_not_the_fault_of_the_client(served, encoded, monkeypatch):
    def fail(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(served._runtime, "_signature", fail)
    with pytest.raises(RequestError, match=r"failed \(out of memory\)") as caught:
        served.predict(body_of(encoded))
    assert caught.value.status == 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: {**outputs, "detection_scores": outputs["detection_scores"] * np.nan}, "NaN"),
        (
            lambda outputs: {**outputs, "detection_scores": outputs["detection_boxes"]},
            r"detection_scores as float32 \[1",
        ),
    ],
)
def test_outputs_that_break_the_contract_are_not_sent(served, encoded, monkeypatch, change, message):
    call = served._runtime._signature
    monkeypatch.setattr(served._runtime, "_signature", lambda **inputs: change(call(**inputs)))
    with pytest.raises(RequestError, match=message) as caught:
        served.predict(body_of(encoded))
    assert caught.value.status == 500


def test_an_idle_model_is_closed_for_further_calls(served):
    served.wait_until_idle(0.0)
    assert served._lock.locked()
    served._lock.release()


def test_model_without_encoded_images_is_not_served(tmp_path):
    class Double(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def double(self, x):
            return {"y": 2 * x}

    model = Double()
    tf.saved_model.save(model, str(tmp_path / "model"), {"serving_default": model.double})
    with pytest.raises(InputError, match=r"serving_encoded.*serving_default"):
        ServedModel(tmp_path / "model", "m")


@pytest.mark.reliability("torn file", "serve")
@pytest.mark.parametrize("share", [0.0, 0.9])
@pytest.mark.parametrize("pattern", ["saved_model.pb", "variables/*.index", "variables/*.data-*", "assets/*.pbtxt"])
def test_truncated_model_is_refused_in_one_sentence(tiny_model_dir, tmp_path, pattern, share):
    model_dir = shutil.copytree(tiny_model_dir, tmp_path / "7")
    (path,) = model_dir.glob(pattern)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        ServedModel(tmp_path, "cells")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("make_read_only", marks=pytest.mark.reliability("read-only", "serve")),
        pytest.param("fill", marks=pytest.mark.reliability("full disk", "serve")),
        pytest.param("remove", marks=pytest.mark.reliability("concurrent runs", "serve")),
    ],
)
def test_loaded_model_is_served_whatever_happens_to_its_disk(change, tiny_model_dir, disk, encoded, served):
    """A push with `push.keep_versions` removes folders."""
    shutil.copytree(tiny_model_dir, disk.folder / "7")
    if change != "remove":
        getattr(disk, change)()
    loaded = ServedModel(disk.folder, "cells")
    if change == "remove":
        shutil.rmtree(disk.folder / "7")
    assert loaded.predict(body_of(encoded)) == served.predict(body_of(encoded))
