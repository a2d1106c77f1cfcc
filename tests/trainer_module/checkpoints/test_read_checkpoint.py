from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from detloom.schemas.errors import InputError
from detloom.trainer_module.checkpoints.read_checkpoint import CheckpointFile, check_path, read_checkpoint


def write_checkpoint(folder: Path) -> str:
    """In the layout of the detection zoo: ckpt-0.index and ckpt-0.data-00000-of-00001."""
    backbone = tf.train.Checkpoint(kernel=tf.Variable([1.0] * 100))
    model = tf.train.Checkpoint(_feature_extractor=backbone, alias=tf.train.Checkpoint(inner=backbone))
    return str(tf.train.Checkpoint(model=model).write(str(folder / "ckpt-0")))


KEY = "model/{}/kernel/.ATTRIBUTES/VARIABLE_VALUE"


def test_a_value_is_found_under_every_name_that_leads_to_its_object(tmp_path):
    file = read_checkpoint(write_checkpoint(tmp_path))
    assert file.find_key(KEY.format("alias/inner")) == file.find_key(KEY.format("_feature_extractor"))
    assert file.find_key(KEY.format("alias")) is None


def test_counters_and_slots_are_no_weights(tmp_path):
    weight = "model/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    slot = "model/kernel/.OPTIMIZER_SLOT/optimizer/momentum/.ATTRIBUTES/VARIABLE_VALUE"
    names = [weight, slot, "step/.ATTRIBUTES/VARIABLE_VALUE", "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"]
    path = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * 4, tensors=[tf.zeros(2)] * 4)
    assert read_checkpoint(path).weight_shapes() == {weight: (2,)}


def test_the_zoos_placeholder_gets_its_own_sentence():
    with pytest.raises(InputError, match=r"PATH_TO_BE_CONFIGURED/ckpt-0, the detection zoo's placeholder"):
        check_path("PATH_TO_BE_CONFIGURED/ckpt-0")


def test_a_pattern_is_refused_with_a_path_that_it_means(tmp_path):
    path = write_checkpoint(tmp_path)
    with pytest.raises(InputError, match=rf"got the pattern .*ckpt-\*, allowed: one path\. Did you mean '{path}'\?"):
        check_path(str(tmp_path / "ckpt-*"))


def test_a_missing_checkpoint_names_the_file_that_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"no checkpoint .*ckpt-7: there is no .*ckpt-7\.index\.$"):
        read_checkpoint(str(tmp_path / "ckpt-7"))


def test_a_folder_is_refused_with_the_checkpoint_in_it(tmp_path):
    path = write_checkpoint(tmp_path / "checkpoint")
    for folder in (tmp_path, tmp_path / "checkpoint"):
        with pytest.raises(InputError, match=rf"is a folder; .* Did you mean '{path}'\?"):
            read_checkpoint(str(folder))


def test_another_file_is_no_checkpoint(tmp_path):
    (tmp_path / "model.pb").write_bytes(b"x")
    with pytest.raises(InputError, match=r"model\.pb is no checkpoint: there is no .*model\.pb\.index"):
        read_checkpoint(str(tmp_path / "model.pb"))


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_a_path_with_ending_is_refused_with_the_one_without(tmp_path, ending):
    path = write_checkpoint(tmp_path)
    with pytest.raises(InputError, match=rf"allowed: the path without ending, {path}\.$"):
        read_checkpoint(path + ending)


def test_a_missing_shard_is_found(tmp_path):
    path = write_checkpoint(tmp_path)
    (tmp_path / "ckpt-0.data-00000-of-00001").unlink()
    with pytest.raises(InputError, match=r"is incomplete: got 0 of 1 files ckpt-0\.data-\.\.\."):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["ckpt-0.index", "ckpt-0.data-00000-of-00001"])
def test_a_file_cut_short_is_found(tmp_path, name):
    path = write_checkpoint(tmp_path)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cannot be read \(.*\); copy it again"):
        read_checkpoint(path)


def test_an_empty_checkpoint_holds_no_weights(tmp_path):
    with pytest.raises(InputError, match="holds no weights"):
        read_checkpoint(tf.train.Checkpoint(step=tf.Variable(1)).save(str(tmp_path / "ckpt")))


def test_a_checkpoint_beside_another_of_a_longer_name_is_whole(tmp_path):
    path = write_checkpoint(tmp_path)
    tf.train.Checkpoint(model=tf.Variable(1.0)).write(path + "0")
    assert read_checkpoint(path).path == path


@pytest.mark.parametrize("child", [None, 1, -1])
def test_a_damaged_graph_of_objects_is_found(tmp_path, child):
    """Without nodes, and with a child that is none of them."""
    graph = TrackableObjectGraph(nodes=[] if child is None else [{"children": [{"node_id": child, "local_name": "m"}]}])
    names, tensors = ["m/kernel", "_CHECKPOINTABLE_OBJECT_GRAPH"], [tf.zeros(2), graph.SerializeToString()]
    path = str(tmp_path / "ckpt")
    tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * 2, tensors=tensors)
    with pytest.raises(InputError, match=r"cannot be read \(its graph of objects is damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize(("look_up", "path"), [(read_checkpoint, "nosuch://x/ckpt-1"), (check_path, "nosuch://x/*")])
def test_an_unknown_file_system_is_one_sentence(look_up, path):
    with pytest.raises(InputError, match=r"nosuch://x/.* cannot be looked up \(File system scheme 'nosuch' not impl"):
        look_up(path)


def test_types_are_looked_up_once():
    calls = []

    class Reader:
        def get_variable_to_dtype_map(self):
            calls.append("")
            return {"a": tf.float32, "b": tf.int64}

    file = CheckpointFile("ckpt", {"a": (), "b": ()}, Reader(), None)
    assert [file.dtype(key) for key in ("a", "b")] == [tf.float32, tf.int64]
    assert len(calls) == 1
