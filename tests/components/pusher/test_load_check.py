import subprocess

import pytest
import tensorflow as tf
import tiny_onnx

from detloom.components.pusher import load_check
from detloom.components.pusher.answer_one_image import find_fault, find_onnx_fault
from detloom.components.pusher.forbid_writes import landlock_version
from detloom.components.pusher.load_check import check_serves
from detloom.components.pusher.manifest import build_manifest
from detloom.schemas.errors import InputError

NAMES = {"serving_encoded": "image_bytes", "serving_default": "input_tensor"}
OUTPUTS = ["detection_boxes", "detection_scores", "detection_classes", "num_detections"]


class Model(tf.Module):
    """A model that returns the same detections for every image."""

    def __init__(self, score, left_out=""):
        super().__init__()
        self._score, self._left_out = score, left_out

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encoded(self, image_bytes):
        return self._answer(tf.io.decode_png(image_bytes[0]))

    @tf.function(input_signature=[tf.TensorSpec([1, None, 32, 3], tf.uint8)])
    def images(self, input_tensor):
        return self._answer(input_tensor)

    @tf.function(input_signature=[tf.TensorSpec([1], tf.float32)])
    def other(self, number):
        return self._answer(number)

    def _answer(self, pixels):
        answer = {
            "detection_boxes": tf.zeros([1, 2, 4]),
            "detection_scores": tf.fill([1, 2], self._score) + 0.0 * tf.reduce_mean(tf.cast(pixels, tf.float32)),
            "detection_classes": tf.ones([1, 2]),
            "num_detections": tf.ones([1]),
        }
        answer.pop(self._left_out, None)
        return answer


@pytest.fixture
def save(tmp_path):
    def save(model, **signatures):
        tf.saved_model.save(model, str(tmp_path / "model"), signatures=signatures)
        return tmp_path / "model"

    return save


@pytest.fixture
def check_with(model, monkeypatch, tmp_path):
    """Return a function that checks a model with another program."""

    def check(program, **options):
        (tmp_path / "program.py").write_text(program)
        monkeypatch.setattr(load_check, "_PROGRAM", tmp_path / "program.py")
        check_serves(model, **options)

    return check


@pytest.mark.slow  # imports TensorFlow in a process of its own
def test_model_for_encoded_images_passes_the_check(save):
    model = Model(0.5)
    check_serves(save(model, serving_encoded=model.encoded, serving_default=model.images))


@pytest.mark.parametrize(
    ("signature", "function", "options", "parts"),
    [
        ("serving_default", "images", {}, []),
        ("serving_encoded", "encoded", {"left_out": "detection_scores"}, ["serving_encoded", "detection_scores"]),
        ("serving_encoded", "encoded", {"score": float("nan")}, ["detection_scores", "NaN"]),
        ("serving_default", "other", {}, ["serving_default", "['number']", "input_tensor"]),
        ("predict", "images", {}, ["serving_encoded, serving_default"]),
    ],
)
def test_fault_names_signature_input_or_output(signature, function, options, parts, save):
    model = Model(**{"score": 0.5, **options})
    fault = find_fault(str(save(model, **{signature: getattr(model, function)})), NAMES, OUTPUTS)
    assert bool(fault) == bool(parts)
    assert [part for part in parts if part not in fault] == []


def scale_is_nan(model):
    model.graph.initializer[0].raw_data = b"\x00\x00\xc0\x7f"  # float32


def batch_is_fixed(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda model: None, []),
        (scale_is_nan, ["detection_scores", "ONNX", "NaN"]),
        (batch_is_fixed, ["detection_scores", "number of images"]),
        (lambda model: model.graph.output.pop(), ["outputs detection_boxes, detection_scores"]),
    ],
)
def test_fault_of_the_onnx_file_names_its_outputs(change, parts, tmp_path):
    content = tiny_onnx.make_tiny_onnx()
    change(content)
    (tmp_path / "model.onnx").write_bytes(content.SerializeToString())
    fault = find_onnx_fault(str(tmp_path / "model.onnx"), [OUTPUTS, ["raw_detection_boxes"]])
    assert bool(fault) == bool(parts)
    assert [part for part in parts if part not in fault] == []


@pytest.mark.slow  # imports TensorFlow in a process of its own
def test_onnx_file_beside_the_savedmodel_is_loaded_too(save):
    model = Model(0.5)
    folder = save(model, serving_encoded=model.encoded)
    content = tiny_onnx.make_tiny_onnx()
    scale_is_nan(content)
    (folder / "model.onnx").write_bytes(content.SerializeToString())
    with pytest.raises(InputError, match=r"detection_scores.* of the ONNX file contain NaN"):
        check_serves(folder)


@pytest.mark.reliability("hostile input", "push")
def test_onnx_file_with_values_in_another_file_is_refused(model, check_with):
    content = tiny_onnx.make_tiny_onnx()
    content.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")
    (model / "model.onnx").write_bytes(content.SerializeToString())
    with pytest.raises(InputError, match=r"model\.onnx: .*in another file"):
        check_with("")


def test_error_of_tensorflow_becomes_one_sentence(model, check_with):
    with pytest.raises(InputError, match=rf"{model}: .*: OSError: Cannot parse file saved_model\.pb\. [A-Z]"):
        check_with("raise OSError('Cannot parse file saved_model.pb.')")


@pytest.mark.parametrize(
    ("returncode", "output", "reason"),
    [(-9, "", "signal 9"), (1, "", "unknown error"), (0, "", "no result"), (0, "[]", "no result")],
)
def test_process_that_ends_abnormally_is_an_error(returncode, output, reason, model, monkeypatch):
    def run(command, *, stdout, **options):
        stdout.write(output.encode())
        return subprocess.CompletedProcess(command, returncode)

    monkeypatch.setattr(load_check.subprocess, "run", run)
    with pytest.raises(InputError, match=reason):
        check_serves(model)


@pytest.mark.reliability("hostile input", "push")
def test_check_ends_after_its_time_limit(check_with):
    with pytest.raises(InputError, match=r"within 0\.2 s"):
        check_with("import os\nos.read(os.pipe()[0], 1)\n", seconds=0.2)


def test_model_that_needs_detloom_is_refused(check_with):
    lines = load_check._PROGRAM.read_text().splitlines()
    blocked = next(line.strip() for line in lines if 'sys.modules["detloom"]' in line)
    with pytest.raises(InputError, match="detloom"):
        check_with(f"import sys\n{blocked}\nimport detloom\n")


@pytest.mark.slow  # imports TensorFlow in a process of its own
def test_graph_error_is_reported_with_type_and_reason(save):
    class Refuses(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def encoded(self, image_bytes):
            with tf.control_dependencies([tf.debugging.Assert(tf.size(image_bytes) > 99, ["too few"])]):
                return {"detection_boxes": tf.zeros([1, 2, 4])}

    model = Refuses()
    with pytest.raises(InputError) as error:
        check_serves(save(model, serving_encoded=model.encoded))
    assert ": InvalidArgumentError: assertion failed: [too few]" in str(error.value)


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize(
    "program",
    [
        "import json; print(json.dumps({'fault': 'bad\\x1b[2J\\nline' + 1000 * 'x'}))",
        "raise ValueError('bad\\x1b[2J' + 1000 * 'x')",
    ],
)
def test_text_from_the_model_is_escaped_and_truncated(program, check_with):
    with pytest.raises(InputError, match=r"bad\\x1b\[2J") as error:
        check_with(program)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 700


WRITES = """
import json, os, sys, tempfile
faults = []
for path in (TARGET, os.path.join(sys.argv[1], 'saved_model.pb'), os.path.join(tempfile.gettempdir(), 'file')):
    try:
        open(path, 'a').close()
    except OSError as error:
        faults.append(type(error).__name__)
print(json.dumps({'fault': ', '.join(faults)}))
"""


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock")
def test_a_model_can_write_into_its_temporary_folder_only(check_with, tmp_path):
    with pytest.raises(InputError, match=r": PermissionError, PermissionError\. "):
        check_with(WRITES.replace("TARGET", repr(str(tmp_path / "9999"))))
    assert not (tmp_path / "9999").exists()


@pytest.mark.reliability("hostile input", "push")
def test_without_landlock_a_model_is_loaded_from_a_private_copy(check_with, model, tmp_path, monkeypatch):
    monkeypatch.setattr(load_check, "landlock_version", lambda: 0)
    before = build_manifest(model)
    check_with(WRITES.replace("'a'", "'w'").replace("TARGET", repr(str(tmp_path / "9999"))))
    assert build_manifest(model) == before


@pytest.mark.reliability("hostile input", "push")
def test_process_gets_an_alarm_but_no_secrets_and_no_input(check_with, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    program = (
        "import json, os, sys\n"
        "print('x' * 300_000)\n"
        "known = [name in os.environ for name in ('AWS_SECRET_ACCESS_KEY', 'TF_ENABLE_ONEDNN_OPTS', 'PATH')]\n"
        "print(json.dumps({'fault': f'{known} {sys.stdin.read()!r} {signal.alarm(0)}'}))\n"
    )
    with pytest.raises(InputError, match=r": \[False, True, True\] '' 900\. "):
        check_with(program, seconds=900.0)
