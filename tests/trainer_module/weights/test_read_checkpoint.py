import os
import struct
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from detloom.schemas.errors import InputError
from detloom.trainer_module.weights.checkpoint_index import _read_table, check_index
from detloom.trainer_module.weights.read_checkpoint import check_path, read_checkpoint


def write_checkpoint(folder: Path) -> str:
    """Write a checkpoint in the layout of the detection zoo: ckpt-0.index and ckpt-0.data-00000-of-00001."""
    backbone = tf.train.Checkpoint(kernel=tf.Variable([1.0] * 100))
    model = tf.train.Checkpoint(_feature_extractor=backbone, alias=tf.train.Checkpoint(inner=backbone))
    return str(tf.train.Checkpoint(model=model).write(str(folder / "ckpt-0")))


KEY = "model/{}/kernel/.ATTRIBUTES/VARIABLE_VALUE"


def test_value_is_found_under_every_name_of_its_object(tmp_path):
    file = read_checkpoint(write_checkpoint(tmp_path))
    assert file.find_key(KEY.format("alias/inner")) == file.find_key(KEY.format("_feature_extractor"))
    assert file.find_key(KEY.format("alias")) is None


def test_counters_and_slots_are_not_weights(tmp_path, write_arrays):
    weight = "model/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    slot = "model/kernel/.OPTIMIZER_SLOT/optimizer/momentum/.ATTRIBUTES/VARIABLE_VALUE"
    names = [weight, slot, "step/.ATTRIBUTES/VARIABLE_VALUE", "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"]
    path = write_arrays(tmp_path / "ckpt", {key: [0.0, 0.0] for key in names})
    assert read_checkpoint(path).weight_shapes() == {weight: (2,)}


def write_index(path: str, entries: dict[bytes, bytes]) -> None:
    """Write a table of one block; its checksum, which is not read, is zero."""

    def varint(number):
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)

    def block_of(rows):
        rows = [b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in rows.items()]
        return b"".join(rows) + struct.pack("<II", 0, 1)  # one restart, at 0

    block = block_of(entries)
    index = block_of({b"z": varint(0) + varint(len(block))})
    handles = varint(0) + varint(0) + varint(len(block) + 5) + varint(len(index))
    footer = handles.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    Path(f"{path}.index").write_bytes(block + bytes(5) + index + bytes(5) + footer)


def change(size=1, **fields):
    def apply(entry):
        entry.shape.dim[0].size = size
        for name, value in fields.items():
            entry.slices.extend(value) if name == "slices" else setattr(entry, name, value)

    return apply


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change(size=100), None),  # as it was
        (change(size=-1), r"invalid shape \[-1\]"),
        (change(size=2**62), r"shape \[4611686018427387904\], but 400 bytes"),
        (change(size=101), r"shape \[101\], but 400 bytes"),
        (change(dtype=7, size=2**32), r"shape \[4294967296\], but 400"),  # strings
        (change(dtype=77), "unknown type 77"),
        (change(dtype=101), "unknown type 101"),  # a reference
        (change(dtype=20), "unknown type 20"),  # a resource
        (change(size=100, slices=[TensorSliceProto(extent=[{"start": 2**62}])]), "invalid part"),
        (change(offset=-1), "400 bytes from -1 on"),
        (change(offset=2**40), "400 bytes from 1099511627776 on"),
        (change(size=2**40, slices=[TensorSliceProto(extent=[{}])]), "shape"),
    ],
)
def test_entries_of_the_index_are_checked_before_tensorflow_reads_them(tmp_path, damage, message):
    path = write_checkpoint(tmp_path)
    entries = dict(_read_table(Path(f"{path}.index").read_bytes()))
    key = next(key for key in entries if key.endswith(b"VARIABLE_VALUE"))
    entry = BundleEntryProto.FromString(entries[key])
    damage(entry)
    write_index(path, {**entries, key: entry.SerializeToString()})
    if message is None:
        check_index(path)
    else:
        with pytest.raises(InputError, match=rf"ckpt-0 cannot be read \('model/.* has .*{message}"):
            read_checkpoint(path)


@pytest.mark.parametrize("name", ["ckpt-0.index", "ckpt-0.data-00000-of-00001"])
def test_a_pipe_is_refused_without_waiting(tmp_path, name):
    path = write_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="regular files"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("look_up", "name", "message"),
    [
        (read_checkpoint, "ckpt-7", r"ckpt-7\.index\.$"),
        (read_checkpoint, "model.pb", r"model\.pb\.index"),  # of another kind
        (check_path, "PATH_TO_BE_CONFIGURED/ckpt-0", "PATH_TO_BE_CONFIGURED/ckpt-0"),  # the zoo's placeholder
    ],
)
def test_a_path_without_a_checkpoint_is_refused(tmp_path, look_up, name, message):
    (tmp_path / "model.pb").write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        look_up(name if "/" in name else str(tmp_path / name))


def test_folder_is_refused_with_the_checkpoint_in_it(tmp_path):
    path = write_checkpoint(tmp_path / "checkpoint")
    for folder in (tmp_path, tmp_path / "checkpoint"):
        with pytest.raises(InputError, match=rf"'{path}'"):
            read_checkpoint(str(folder))


@pytest.mark.parametrize("listed", ["../secret", "/elsewhere/ckpt-0", "\\377", ""])
def test_only_a_checkpoint_in_the_folder_is_suggested(tmp_path, listed):
    path = write_checkpoint(tmp_path / "run")
    (tmp_path / "secret").write_text("")
    (tmp_path / "run/checkpoint").write_text(f'model_checkpoint_path: "{listed}"\n')
    with pytest.raises(InputError, match=rf"'{path}'\?$"):
        read_checkpoint(str(tmp_path / "run"))


def test_a_pattern_a_path_with_suffix_and_a_missing_shard_are_refused(tmp_path):
    path = write_checkpoint(tmp_path)
    with pytest.raises(InputError, match=rf"ckpt-\*, .*'{path}'"):
        check_path(str(tmp_path / "ckpt-*"))
    for ending in (".index", ".data-00000-of-00001"):
        with pytest.raises(InputError, match=rf"{path}\.$"):
            read_checkpoint(path + ending)
    (tmp_path / "ckpt-0.data-00000-of-00001").unlink()
    with pytest.raises(InputError, match=r"0 of 1 files ckpt-0\.data-"):
        read_checkpoint(path)


@pytest.mark.reliability("torn file", "train")
@pytest.mark.reliability("torn file", "export")
@pytest.mark.parametrize("name", ["ckpt-0.index", "ckpt-0.data-00000-of-00001"])
def test_truncated_file_is_reported(tmp_path, name):
    path = write_checkpoint(tmp_path)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match=path):
        read_checkpoint(path)


def test_checkpoint_without_weights_is_refused(tmp_path):
    with pytest.raises(InputError, match="ckpt-1 has no weights"):
        read_checkpoint(tf.train.Checkpoint(step=tf.Variable(1)).save(str(tmp_path / "ckpt")))


def test_checkpoint_beside_one_with_a_longer_name_is_complete(tmp_path):
    path = write_checkpoint(tmp_path)
    tf.train.Checkpoint(model=tf.Variable(1.0)).write(path + "0")
    assert read_checkpoint(path).path == path


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.reliability("hostile input", "export")
@pytest.mark.parametrize("child", [None, 1, -1])
def test_corrupt_object_graph_is_reported(tmp_path, write_arrays, child):
    """The graph has no nodes, or a child that does not exist."""
    graph = TrackableObjectGraph(nodes=[] if child is None else [{"children": [{"node_id": child, "local_name": "m"}]}])
    path = write_arrays(tmp_path / "ckpt", {"m/kernel": [0.0, 0.0]}, graph)
    with pytest.raises(InputError, match="object graph"):
        read_checkpoint(path)


@pytest.mark.parametrize(("look_up", "path"), [(read_checkpoint, "nosuch://x/ckpt-1"), (check_path, "nosuch://x/*")])
def test_unknown_file_system_is_reported(look_up, path):
    with pytest.raises(InputError, match=r"nosuch://x/.*'nosuch'"):
        look_up(path)
