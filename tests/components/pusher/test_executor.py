import json
from pathlib import Path

import pytest
from tfx.components.pusher.component import Pusher
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.proto import pusher_pb2
from tfx.types import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel
from tfx.utils import proto_utils

from detloom.components.pusher.atomic_push import list_versions
from detloom.components.pusher.executor import Executor
from detloom.schemas.errors import InputError


def make_destination(folder):
    return pusher_pb2.PushDestination(filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=str(folder)))


@pytest.fixture
def do(tmp_path):
    """Runs `Do` on temporary artifacts and returns the PushedModel artifact."""
    serving = tmp_path / "model" / "Format-Serving"
    serving.mkdir(parents=True)
    (serving / "saved_model.pb").write_bytes(b"graph")

    def call(blessed=1, destination=None):
        model, blessing, pushed = Model(), ModelBlessing(), PushedModel()
        model.uri, pushed.uri = str(tmp_path / "model"), str(tmp_path / "pushed")
        blessing.set_int_custom_property("blessed", blessed)
        blessing.set_string_custom_property("blessing_message", "Not blessed: AP50 0.100 is below 0.500.")
        text = proto_utils.proto_to_json(destination or make_destination(tmp_path / "serving"))
        Executor().Do(
            {"model": [model], "model_blessing": [blessing]},
            {"pushed_model": [pushed]},
            {"push_destination": text, "custom_config": "null"},
        )
        return pushed

    return call


def test_a_blessed_model_is_pushed_and_marked_as_by_the_stock_pusher(do, tmp_path):
    pushed = do()
    (version,) = list_versions(tmp_path / "serving")
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("pushed_version") == str(version)
    assert pushed.get_string_custom_property("pushed_destination") == str(tmp_path / "serving" / str(version))
    assert (tmp_path / "serving" / str(version) / "saved_model.pb").read_bytes() == b"graph"
    assert (tmp_path / "pushed" / "saved_model.pb").read_bytes() == b"graph"
    record = json.loads((tmp_path / "serving" / "push_record.jsonl").read_text())
    assert record["model_uri"] == str(tmp_path / "model")


def test_a_model_that_is_not_blessed_is_not_pushed_and_the_reason_is_logged(do, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    pushed = do(blessed=0)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not (tmp_path / "serving").exists()
    assert "not pushed. Not blessed: AP50 0.100 is below 0.500." in caplog.text


def test_the_same_model_again_names_the_version_it_has(do, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    first, second = do(), do()
    assert second.get_int_custom_property("pushed") == 1
    version = second.get_string_custom_property("pushed_version")
    assert version == first.get_string_custom_property("pushed_version")
    assert f"nothing to do, version {version}" in caplog.text
    assert len(list_versions(tmp_path / "serving")) == 1


@pytest.mark.parametrize("destination", [pusher_pb2.PushDestination(), make_destination("gs://bucket/serving")])
def test_a_destination_that_cannot_rename_is_refused(do, destination):
    with pytest.raises(InputError, match="push_destination: "):
        do(destination=destination)


def test_the_stock_pusher_takes_the_executor():
    pusher = Pusher(
        model=Channel(type=Model),
        model_blessing=Channel(type=ModelBlessing),
        push_destination=make_destination(Path("/serving")),
        custom_executor_spec=ExecutorClassSpec(Executor),
    )
    assert pusher.executor_spec.class_path == "detloom.components.pusher.executor.Executor"
