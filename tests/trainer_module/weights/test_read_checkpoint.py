from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from detloom.schemas.errors import InputError
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
