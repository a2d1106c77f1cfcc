import logging
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from detloom.pipelines.cli import cli
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import MixUp, Mosaic, RandomHorizontalFlip
from detloom.trainer_module.data import data_service
from detloom.trainer_module.data.data_service import (
    DataServer,
    ServerAddress,
    check_servers,
    lost_servers_as_input_errors,
    servers_in,
    watched_servers,
)
from detloom.trainer_module.data.input_pipeline import build_train_dataset
from detloom.trainer_module.evaluation.split_evaluator import bad_records_as_input_errors

LABEL_MAP = LabelMap(((1, "a"), (7, "b")))


@pytest.fixture(scope="module")
def servers(free_ports) -> Iterator[list[ServerAddress]]:
    """Two servers in this process; they take seconds to start and to end."""
    ports = free_ports(4)
    running = [DataServer("localhost", ports[i], ports[i + 2]) for i in range(2)]
    yield [ServerAddress("localhost", port) for port in ports[:2]]
    del running


@pytest.mark.slow
def test_servers_make_the_batches_of_the_trainer_in_their_order(
    tiny_config, changed, tmp_path, make_example, write_records, servers
):
    config = changed(tiny_config, {"train.augmentations": (RandomHorizontalFlip(), Mosaic(), MixUp())})
    records = [make_example([(0.1, 0.1, 0.1 * i, 0.9)], [7], name=f"{i}", image_hw=(40 + i, 60)) for i in range(3, 9)]
    shards = [str(write_records(tmp_path / "data", records))]

    def batches(servers):
        dataset = build_train_dataset(config, LABEL_MAP, shards, batch_size=2, start_step=5, servers=servers)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        return list(dataset.take(5).as_numpy_iterator())

    for made_here, made_there in zip(batches([]), batches(servers), strict=True):
        assert made_here.keys() == made_there.keys()
        for name, expected in made_here.items():
            np.testing.assert_array_equal(made_there[name], expected, err_msg=name)


@pytest.mark.slow
def test_a_record_that_a_server_cannot_decode_is_the_error_of_the_trainer(
    tiny_config, tmp_path, make_example, write_records, servers
):
    broken = tf.train.Example.FromString(make_example())
    broken.features.feature[keys.IMAGE_ENCODED].bytes_list.value[0] = b"no image"
    shards = [str(write_records(tmp_path / "data", [broken.SerializeToString()]))]
    dataset = build_train_dataset(tiny_config, LABEL_MAP, shards, batch_size=2, servers=servers)
    with pytest.raises(InputError, match=r"a record cannot be used: .*image"), bad_records_as_input_errors(shards):
        next(iter(dataset))


@pytest.mark.slow
def test_a_file_that_a_server_does_not_find_is_named(tiny_config, tmp_path, make_example, write_records, servers):
    shard = write_records(tmp_path / "data", [make_example()])
    dataset = build_train_dataset(tiny_config, LABEL_MAP, [str(shard)], batch_size=2, servers=servers)
    shard.unlink()
    message = f"does not find them under the paths.*{shard.name}"
    with pytest.raises(InputError, match=message), lost_servers_as_input_errors(servers):
        next(iter(dataset))


def test_the_environment_names_the_servers():
    assert servers_in({}) == ()
    assert servers_in({"DETLOOM_DATA_SERVICE": " a:5050, 10.0.0.1:81,"}) == (("a", 5050), ("10.0.0.1", 81))


@pytest.mark.parametrize("text", ["data-0", "data-0:", ":5050", "a:x", "a:0", "a:65536", "a:1,a:1"])
def test_an_invalid_address_is_refused(text):
    with pytest.raises(InputError, match=r"^DETLOOM_DATA_SERVICE: got .*allowed: "):
        servers_in({"DETLOOM_DATA_SERVICE": text})


def test_a_server_that_does_not_answer_is_named_with_the_next_step(free_ports):
    (port,) = free_ports(1)
    with socket.create_server(("localhost", 0)) as listener:
        answering = ServerAddress("localhost", listener.getsockname()[1])
        check_servers([answering])
        message = rf"localhost:{port} does not answer \(.*start `detloom data-service --port {port}`"
        with pytest.raises(InputError, match=message):
            check_servers([answering, ServerAddress("localhost", port)])


def test_a_port_in_use_is_refused(free_ports):
    (free,) = free_ports(1)
    with socket.create_server(("localhost", 0)) as listener:
        used = listener.getsockname()[1]
        for ports in ((used, free), (free, used)):
            with pytest.raises(InputError, match=rf"^port {used}: cannot listen \(Address already in use\)"):
                DataServer("localhost", *ports)


def test_the_ports_have_to_differ(free_ports):
    (port,) = free_ports(1)
    with pytest.raises(InputError, match=f"got {port} for both"):
        DataServer("localhost", port, port)


@pytest.mark.parametrize("arguments", [["--port", "65535"], ["--port", "0"], ["--worker-port", "65536"]])
def test_a_port_out_of_range_is_refused(arguments):
    result = CliRunner().invoke(cli, ["data-service", "--host", "data-0", *arguments])
    assert (result.exit_code, "is not in the range" in result.output) == (2, True)


def test_training_logs_that_it_waits_for_a_server(monkeypatch, caplog, free_ports):
    monkeypatch.setattr(data_service, "_WATCH_SECONDS", 0.01)
    (port,) = free_ports(1)
    with caplog.at_level(logging.INFO, "detloom"), watched_servers([ServerAddress("localhost", port)]):
        wait_for(lambda: f"localhost:{port} does not answer" in caplog.text)
        with socket.create_server(("127.0.0.1", port)):
            wait_for(lambda: f"localhost:{port} answers again" in caplog.text)
    assert caplog.text.count("does not answer") == 1


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("the condition did not become true in 10 s")


def test_only_with_servers_is_an_unknown_stream_the_error_of_a_server():
    with pytest.raises(InputError, match="a server restarted"), lost_servers_as_input_errors([ServerAddress("a", 1)]):
        raise tf.errors.NotFoundError(None, None, "Unknown iteration client id 3001")
    with pytest.raises(tf.errors.NotFoundError), lost_servers_as_input_errors([]):
        raise tf.errors.NotFoundError(None, None, "no such file")
