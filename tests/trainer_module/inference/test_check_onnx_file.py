import pytest

onnx = pytest.importorskip("onnx", reason="pip install '.[onnx]'")

import tiny_onnx  # noqa: E402 - needs onnx

from detloom.trainer_module.inference import check_onnx_file as checks  # noqa: E402


def test_the_field_numbers_are_those_of_onnx():
    for kind, children in checks._CHILDREN.items():
        fields = [each for each in getattr(onnx, f"{kind}Proto").DESCRIPTOR.fields if each.message_type is not None]
        found = {field.number: field.message_type.name.removesuffix("Proto") for field in fields}
        assert children == {number: name for number, name in found.items() if name in checks._CHILDREN}
    for kind, number in checks._DOMAIN.items():
        assert getattr(onnx, f"{kind}Proto").DESCRIPTOR.fields_by_name["domain"].number == number
    assert onnx.TensorProto.DESCRIPTOR.fields_by_name["external_data"].number == checks._EXTERNAL_DATA


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
        (lambda model: setattr(model.graph.node[2], "domain", "my.code"), r"domain b'my\.code'"),
        (lambda model: model.functions.add(domain="my.code"), r"domain b'my\.code'"),
        (nest_deeply, "nested too deeply"),
    ],
)
def test_a_model_that_needs_other_files_or_code_is_refused(change, message):
    model = tiny_onnx.make_tiny_onnx()
    checks.check_onnx_file(model.SerializeToString())
    change(model)
    with pytest.raises(ValueError, match=message):
        checks.check_onnx_file(model.SerializeToString())


@pytest.mark.reliability("torn file", "serve")
def test_other_bytes_are_refused_and_a_truncated_model_too():
    content = tiny_onnx.make_tiny_onnx().SerializeToString()
    long_key = bytes([0x80 | 13 << 3 & 0x7F | 2, 0x80, 0x80, 0x80, 0x10, 0])  # 2**32 more than the key of a field
    for damaged in (content[:-3], b"<html>", b"\xff" * 20, content[: len(content) // 2], long_key):
        with pytest.raises(ValueError, match="not an ONNX file"):
            checks.check_onnx_file(damaged)
