import io
import os
import signal
import threading

import numpy as np
import onnx
import pytest
import tiny_onnx
from PIL import Image

from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference import choose_runtime, model_process
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.onnx_file_runtime import OnnxFileRuntime
from detloom.trainer_module.inference.runtime import FailedCallError


@pytest.fixture(params=["onnxruntime", "openvino"])
def engine(request):
    pytest.importorskip(request.param, reason=f"pip install {request.param}")
    return request.param


def gray(level, width=20):
    file = io.BytesIO()
    Image.new("L", (width, 10), level).save(file, "PNG")
    return EncodedImage(file.getvalue())


def load(folder, engine, change=lambda model: None):
    model = tiny_onnx.make_tiny_onnx()
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return OnnxFileRuntime(str(folder), engine)


def test_images_of_several_sizes_keep_their_order(engine, tmp_path):
    found = load(tmp_path, engine).detect([gray(51), gray(102, width=30), gray(255), gray(0, width=30)])
    assert [rows[names.SCORES].tolist() for rows in found] == [pytest.approx([n / 255]) for n in (51, 102, 255, 0)]
    assert found[1][names.BOXES].tolist() == [pytest.approx(tiny_onnx.BOX)]
    assert found[1][names.CLASSES].tolist() == [1]


def test_boxes_in_pixels_become_relative(engine, tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / names.ASSET_CONTRACT).write_text('{"box_units": "pixels"}')
    (rows,) = load(tmp_path, engine).detect([gray(51)])
    np.testing.assert_allclose(rows[names.BOXES], [[0.1 / 10, 0.2 / 20, 0.3 / 10, 0.4 / 20]], rtol=1e-6)


def test_auto_takes_tensorflow_for_a_file_with_raw_outputs(engine, tmp_path, monkeypatch):
    def rename_outputs(model):
        for node, name in ((-1, "raw_detection_boxes"), (-5, "raw_detection_scores")):
            model.graph.node.add(op_type="Identity", input=[model.graph.node[node].output[0]], output=[name])
            model.graph.output.add(name=name).type.CopyFrom(model.graph.output[0].type)

    monkeypatch.setattr(choose_runtime, "_choose", lambda model_dir: (engine, ""))
    monkeypatch.setattr("detloom.trainer_module.inference.saved_model_runtime.SavedModelRuntime", lambda path: "loaded")
    with pytest.raises(InputError, match="has raw outputs"):
        load(tmp_path, engine, rename_outputs)
    assert choose_runtime.load_runtime(tmp_path) == "loaded"


def remove_output(model):
    del model.graph.output[1]


def use_other_operator(model):
    model.graph.node[2].op_type = "NoSuchOperator"


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_output, r"needed: input_tensor .*detection_scores"),
        (lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 1), r"tensor\(float"),
        (use_other_operator, "cannot be loaded by .*NoSuchOperator"),
        (lambda model: model.graph.initializer[0].external_data.add(key="location", value="x"), "in another file"),
    ],
)
def test_a_foreign_or_hostile_model_is_one_sentence(engine, tmp_path, change, message):
    with pytest.raises(InputError, match=rf"model\.onnx: .*{message}") as caught:
        load(tmp_path, engine, change)
    assert "\n" not in str(caught.value)


@pytest.mark.reliability("torn file", "serve")
def test_a_truncated_or_missing_file_is_named(engine, tmp_path):
    path = tiny_onnx.write_tiny_onnx(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=rf"model\.onnx: cannot be loaded by {engine} \(it is truncated"):
        OnnxFileRuntime(str(tmp_path), engine)
    path.unlink()
    with pytest.raises(InputError, match=r"has no model\.onnx"):
        OnnxFileRuntime(str(tmp_path), engine)


@pytest.mark.reliability("hostile input", "serve")
def test_a_model_that_blocks_its_process_is_an_error_and_the_next_call_starts_it_again(engine, tmp_path):
    runtime = load(tmp_path, engine)
    process = model_process._process_of(os.getpid())._process
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGALRM)  # as after the time limit; arrives when the process continues
    threading.Timer(1, process.send_signal, [signal.SIGCONT]).start()
    with pytest.raises(FailedCallError, match="within 180 s"):
        runtime.detect([gray(51)])
    assert len(runtime.detect([gray(51)])) == 1


def test_a_process_that_was_ended_while_idle_costs_no_request(engine, tmp_path):
    runtime = load(tmp_path, engine)
    process = model_process._process_of(os.getpid())._process
    process.kill()  # as the kernel does when memory is short
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(runtime.detect([gray(51)])) == 1


def need_much_memory(model):
    """Replace the number of detections by sums of 2**45 values; only the size of the image tells how many."""
    constants = {"512": np.array(512), "axes": np.array([1, 2, 3])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    for node in model.graph.node:
        for names_of_arrays in (node.input, node.output):
            names_of_arrays[:] = ["one_each" if name == "num_detections" else name for name in names_of_arrays]
    model.graph.node.append(onnx.helper.make_node("Shape", ["input_tensor"], ["size"]))
    model.graph.node.append(onnx.helper.make_node("Mul", ["size", "512"], ["huge_size"]))
    model.graph.node.append(onnx.helper.make_node("Expand", ["one_each", "huge_size"], ["huge"]))
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["huge", "axes"], ["num_detections"], keepdims=0))


def return_a_list(model):
    model.graph.node.append(onnx.helper.make_node("SequenceConstruct", ["score"], ["list"]))
    del model.graph.node[-2]
    model.graph.node[-1].output[0] = "detection_boxes"
    del model.graph.output[0]
    value = onnx.helper.make_tensor_sequence_value_info("detection_boxes", onnx.TensorProto.FLOAT, None)
    model.graph.output.append(value)


@pytest.mark.reliability("hostile input", "serve")
def test_an_output_that_is_a_list_is_refused(engine, tmp_path):
    with pytest.raises(InputError, match=r"detection_boxes|No conversion rule"):
        load(tmp_path, engine, return_a_list).detect([gray(51)])


@pytest.mark.reliability("hostile input", "serve")
def test_more_outputs_than_fit_into_memory_are_refused(monkeypatch, tmp_path):
    class Huge:
        def run(self, inputs):
            return {"x": np.zeros(100)}

    monkeypatch.setattr(model_process, "_MAX_OUTPUT_BYTES", 799)
    with pytest.raises(ValueError, match="more than 799 bytes"):
        model_process._run(Huge(), {})


@pytest.mark.reliability("hostile input", "serve")
def test_a_model_that_needs_too_much_memory_fails(engine, tmp_path):
    runtime = load(tmp_path, engine, need_much_memory)
    with pytest.raises(FailedCallError, match="Failed to allocate"):
        runtime.detect([gray(51)])
