import onnx
import pytest
import tiny_onnx

from detloom.trainer_module.inference.check_onnx_file import check_onnx_file


def point_elsewhere(tensor):
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def point_elsewhere_in_a_loop(model):
    tensor = onnx.TensorProto()
    point_elsewhere(tensor)
    inner = onnx.helper.make_graph([onnx.helper.make_node("Constant", [], ["x"], value=tensor)], "inner", [], [])
    model.graph.node.add(op_type="If").attribute.append(onnx.helper.make_attribute("then_branch", inner))


def nest_deeply(model):
    for _ in range(40):
        inner = onnx.helper.make_attribute("body", model.graph)
        del model.graph.node[:]
        model.graph.node.add(op_type="Loop").attribute.append(inner)


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: point_elsewhere(model.graph.initializer[0]), "values are in another file"),
        (point_elsewhere_in_a_loop, "values are in another file"),
        (lambda model: setattr(model.graph.node[2], "domain", "my.code"), r"domain 'my\.code'"),
        (lambda model: model.functions.add(domain="my.code"), r"domain 'my\.code'"),
        (nest_deeply, "nested too deeply"),
    ],
)
def test_a_model_that_needs_other_files_or_code_is_refused(change, message):
    model = tiny_onnx.make_tiny_onnx()
    check_onnx_file(model.SerializeToString())
    change(model)
    with pytest.raises(ValueError, match=message):
        check_onnx_file(model.SerializeToString())


@pytest.mark.reliability("torn file", "serve")
def test_other_bytes_are_refused_and_a_truncated_model_too():
    content = tiny_onnx.make_tiny_onnx().SerializeToString()
    for damaged in (content[:-3], b"<html>", b"\xff" * 20, content[: len(content) // 2]):
        with pytest.raises(ValueError, match="not an ONNX file"):
            check_onnx_file(damaged)


@pytest.mark.reliability("hostile input", "serve")
def test_a_file_that_is_hidden_by_bits_that_parsers_drop_is_refused():
    key = bytes([0x80 | 13 << 3 & 0x7F | 2, 0x80, 0x80, 0x80, 0x10, 0])  # 2**32 more than the key of external_data
    hidden = bytes([7 << 3 | 2, 8, 5 << 3 | 2, 6]) + key  # of an initializer in the graph
    with pytest.raises(ValueError, match=r"values are in another file|not an ONNX file"):
        check_onnx_file(tiny_onnx.make_tiny_onnx().SerializeToString() + hidden)
