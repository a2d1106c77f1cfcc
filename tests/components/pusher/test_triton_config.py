"""The configuration that Triton reads; written by pushes and rollbacks of versions with model.onnx."""

import os
import re
import stat

import onnx
import pytest
import tiny_onnx
from pushes import push, roll_back_at

from detloom.components.pusher.triton_config import CONFIG_FILE, format_triton_config
from detloom.schemas.errors import InputError


@pytest.fixture
def onnx_model(model):
    tiny_onnx.write_tiny_onnx(model)
    return model


def with_rows(model_dir, num_rows):
    """Let the ONNX file of a model declare another number of rows."""
    content = onnx.load(model_dir / "model.onnx")
    for output in content.graph.output[:3]:
        output.type.tensor_type.shape.dim[1].dim_value = num_rows
    onnx.save(content, model_dir / "model.onnx")


def integers():
    """Return an ONNX model without a type that a detector has."""
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["B"])
    return onnx.helper.make_model(onnx.helper.make_graph([], "integers", [ids], []))


def test_configuration_describes_inputs_and_outputs_without_the_batch(onnx_model):
    lines = format_triton_config({"model.onnx": onnx_model / "model.onnx"}).decode().splitlines()
    assert {'backend: "onnxruntime"', 'default_model_filename: "model.onnx"'} <= set(lines)
    assert lines[-5:] == [
        'input { name: "input_tensor" data_type: TYPE_UINT8 dims: [-1, -1, 3] }',
        'output { name: "detection_boxes" data_type: TYPE_FP32 dims: [1, 4] }',
        'output { name: "detection_scores" data_type: TYPE_FP32 dims: [1] }',
        'output { name: "detection_classes" data_type: TYPE_FP32 dims: [1] }',
        'output { name: "num_detections" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }',
    ]


def test_configuration_is_that_of_the_served_version_also_after_a_rollback(onnx_model, other_model, tmp_path):
    serving = tmp_path / "serving"
    push(onnx_model, serving, at=1.0)
    first = (serving / CONFIG_FILE).read_bytes()
    tiny_onnx.write_tiny_onnx(other_model)
    with_rows(other_model, 7)
    push(other_model, serving, at=2.0)
    assert b"dims: [7, 4]" in (serving / CONFIG_FILE).read_bytes()
    roll_back_at(serving, 3.0)
    assert (serving / CONFIG_FILE).read_bytes() == first


def test_configuration_that_a_person_changed_stays(onnx_model, tmp_path, caplog):
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / CONFIG_FILE).write_text('backend: "openvino"')
    with caplog.at_level("INFO", logger="detloom"):
        push(onnx_model, tmp_path / "serving")
    assert (tmp_path / "serving" / CONFIG_FILE).read_text() == 'backend: "openvino"'
    assert "changed by a person" in caplog.text


def test_push_of_the_served_model_writes_a_missing_configuration(onnx_model, tmp_path):
    config = tmp_path / "serving" / CONFIG_FILE
    push(onnx_model, tmp_path / "serving", at=1.0)
    config.unlink()
    assert not push(onnx_model, tmp_path / "serving", at=2.0).is_new
    assert config.is_file()


def test_configuration_can_be_read_by_those_who_read_the_folder(onnx_model, tmp_path):
    (tmp_path / "serving").mkdir(mode=0o755)
    before = os.umask(0o077)
    try:
        push(onnx_model, tmp_path / "serving")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "serving" / CONFIG_FILE).stat().st_mode) == 0o644


def test_version_without_onnx_file_has_no_configuration_and_warns_of_an_existing_one(model, tmp_path, caplog):
    push(model, tmp_path / "serving", at=1.0)
    assert not (tmp_path / "serving" / CONFIG_FILE).exists()
    (tmp_path / "serving" / CONFIG_FILE).touch()
    push(model, tmp_path / "serving", at=2.0)
    assert "has no model.onnx" in caplog.text


def test_configuration_that_cannot_be_written_does_not_fail_the_push(onnx_model, tmp_path, caplog):
    (tmp_path / "serving" / CONFIG_FILE).mkdir(parents=True)
    assert push(onnx_model, tmp_path / "serving").is_new
    assert "could not be written" in caplog.text


@pytest.mark.reliability("hostile input", "push")
@pytest.mark.parametrize(("content", "reason"), [(b"\xff\xff", "[Pp]ars"), (integers().SerializeToString(), "ids")])
def test_file_of_no_detector_is_refused_before_anything_is_published(content, reason, model, tmp_path):
    (model / "model.onnx").write_bytes(content)
    with pytest.raises(InputError, match=rf"{re.escape(str(model))}/model\.onnx: .*{reason}"):
        push(model, tmp_path / "serving")
    assert not (tmp_path / "serving" / "1000").exists()
