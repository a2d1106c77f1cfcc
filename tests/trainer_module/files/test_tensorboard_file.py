import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator

from detloom.trainer_module.files import tensorboard_file
from detloom.trainer_module.files.tensorboard_file import EventFile


def read(folder):
    """Read events with TensorBoard's own reader."""
    accumulator = PluginEventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def shown_scalars(folder, tag):
    """Return (step, value) pairs."""
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in read(folder).Tensors(tag)]


def scalars(folder, tag):
    """Return (step, value) pairs that both TensorBoard's reader and its older reader give."""
    older = EventAccumulator(str(folder), purge_orphaned_data=True)
    older.Reload()
    found = [(event.step, event.value) for event in older.Scalars(tag)]
    assert found == shown_scalars(folder, tag)
    return found


def write_scalars(folder, values, *, restart=None):
    file = EventFile(folder)
    if restart is not None:
        file.restart(restart)
    for step, value in values:
        file.scalar(step, "loss", value)
    file.close()


@pytest.mark.reliability("clock jump", "train")
@pytest.mark.parametrize("later_clock", [1_700_000_000.2, 1_600_000_000.0])
def test_resumed_run_is_read_last_whatever_the_clock(tmp_path, monkeypatch, later_clock):
    monkeypatch.setattr(tensorboard_file.time, "time", lambda: 1_700_000_000.1)
    write_scalars(tmp_path, [(1, 1.0), (2, 2.0), (3, 3.0)])
    monkeypatch.setattr(tensorboard_file.time, "time", lambda: later_clock)
    write_scalars(tmp_path, [(2, 20.0)], restart=1)
    assert scalars(tmp_path, "loss") == [(1, 1.0), (2, 20.0)]


def test_event_file_of_tensorflow_is_read_before(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("loss", 9.0, step=7)
    write_scalars(tmp_path, [(6, 1.0)], restart=5)
    assert shown_scalars(tmp_path, "loss") == [(6, 1.0)]


@pytest.mark.reliability("torn file", "train")
def test_truncated_record_loses_no_other_event(tmp_path):
    write_scalars(tmp_path, [(1, 1.0), (2, 2.0)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    write_scalars(tmp_path, [(2, 20.0)], restart=1)
    assert scalars(tmp_path, "loss") == [(1, 1.0), (2, 20.0)]


def test_images_of_different_sizes_are_one_entry(tmp_path):
    file = EventFile(tmp_path)
    file.images(3, "seen", [np.full((20, 30, 3), 200, np.uint8), np.zeros((8, 10, 3), np.uint8)])
    file.close()
    (event,) = read(tmp_path).Tensors("seen")
    width, height, *encoded = tf.make_ndarray(event.tensor_proto).tolist()
    assert (event.step, width, height) == (3, b"30", b"20")
    assert [Image.open(io.BytesIO(data)).size for data in encoded] == [(30, 20), (10, 8)]


def test_no_images_and_no_finite_weights_write_nothing(tmp_path):
    file = EventFile(tmp_path)
    file.images(1, "seen", [])
    file.histogram(1, "weights", np.array([np.nan, np.inf]))
    file.close()
    assert read(tmp_path).Tags()["tensors"] == []


def test_histogram_counts_every_finite_value(tmp_path):
    file = EventFile(tmp_path)
    file.histogram(1, "weights", np.array([[0.0, 1.0, 1.0], [3.0, np.nan, 2.0]], np.float32))
    file.close()
    (event,) = read(tmp_path).Tensors("weights")
    left, right, counts = tf.make_ndarray(event.tensor_proto).T
    assert (left[0], right[-1], counts.sum()) == (0.0, 3.0, 5)


def test_each_tensorboard_plugin_finds_its_entries(tmp_path):
    file = EventFile(tmp_path)
    file.scalar(1, "a", 1.0)
    file.text(1, "b", "rolled back")
    file.images(1, "c", [np.zeros((4, 4, 3), np.uint8)])
    file.histogram(1, "d", np.ones(3))
    file.close()
    accumulator = read(tmp_path)
    plugins = ("scalars", "text", "images", "histograms")
    found = {plugin: list(accumulator.PluginTagToContent(plugin)) for plugin in plugins}
    assert found == {"scalars": ["a"], "text": ["b"], "images": ["c"], "histograms": ["d"]}
    (text,) = accumulator.Tensors("b")
    assert tf.make_ndarray(text.tensor_proto).tolist() == [b"rolled back"]
