import json
import shlex
from pathlib import Path

import pytest
from artifacts import make_artifact
from command_line import detloom_command
from tfx.components.pusher.component import Pusher as StockPusher
from tfx.proto import pusher_pb2
from tfx.types import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel
from tfx.utils import json_utils, proto_utils

from detloom.components.artifact_types import ModelCard
from detloom.components.pusher import component as executor_module
from detloom.components.pusher.component import DetectionPusher, Executor
from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import list_versions, push_model, roll_back
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.push import Push


def make_destination(folder):
    return pusher_pb2.PushDestination(filesystem=pusher_pb2.PushDestination.Filesystem(base_directory=str(folder)))


@pytest.fixture
def do(tmp_path, monkeypatch, make_model):
    """Return a function that runs `Do` on temporary artifacts and returns the PushedModel artifact."""
    monkeypatch.setattr(executor_module, "check_serves", lambda folder, seconds: None)
    make_model(tmp_path / "model" / "Format-Serving")

    def call(blessed=1, destination=None, settings=None, card=False, model_uri=None, address=None, **properties):
        model = make_artifact(Model, model_uri or tmp_path / "model", **({"address": address} if address else {}))
        pushed = make_artifact(PushedModel, tmp_path / "pushed")
        blessing = make_artifact(
            ModelBlessing,
            tmp_path / "blessing",
            5,
            blessed=blessed,
            blessing_message="Not blessed: AP50 0.100 is below 0.500.",
            blessing_metrics='{"AP": 0.25, "AP50": 0.5}',
            blessed_forms='["saved_model", "onnx"]',
            **properties,
        )
        inputs = {"model": [model], "model_blessing": [blessing]}
        if card:
            inputs["model_card"] = [make_artifact(ModelCard, tmp_path / "card")]
        custom_config = {"push": to_canonical_json(settings)} if settings else None
        Executor().Do(
            inputs,
            {"pushed_model": [pushed]},
            {
                "push_destination": proto_utils.proto_to_json(destination or make_destination(tmp_path / "serving")),
                "custom_config": json_utils.dumps(custom_config),
            },
        )
        return pushed

    return call


def test_blessed_model_is_pushed_and_marked_like_tfx_pusher_does(do, tmp_path):
    pushed = do()
    (version,) = list_versions(tmp_path / "serving")
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("pushed_version") == str(version)
    assert pushed.get_string_custom_property("pushed_destination") == str(tmp_path / "serving" / str(version))
    assert (tmp_path / "serving" / str(version) / "saved_model.pb").read_bytes() == b"graph"
    assert (tmp_path / "pushed" / "saved_model.pb").read_bytes() == b"graph"


def test_record_contains_blessing_and_metrics(do, tmp_path):
    do()
    record = json.loads((tmp_path / "serving" / "push_record.jsonl").read_text())
    assert record["model_uri"] == str(tmp_path / "model")
    assert record["metrics"] == {"AP": 0.25, "AP50": 0.5}
    assert record["blessing"] == {
        "id": 5,
        "uri": str(tmp_path / "blessing"),
        "blessed": True,
        "sentence": "Not blessed: AP50 0.100 is below 0.500.",
        "forms": ["saved_model", "onnx"],
    }


def test_unblessed_model_is_not_pushed_and_the_reason_is_logged(do, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    pushed = do(blessed=0)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not (tmp_path / "serving").exists()
    assert "Not blessed: AP50 0.100 is below 0.500." in caplog.text


def test_same_model_again_returns_its_existing_version(do, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    first, second = do(), do()
    assert second.get_int_custom_property("pushed") == 1
    assert [each.get_int_custom_property("pushed_is_new") for each in (first, second)] == [1, 0]
    version = second.get_string_custom_property("pushed_version")
    assert version == first.get_string_custom_property("pushed_version")
    assert f"version {version}" in caplog.text
    assert len(list_versions(tmp_path / "serving")) == 1


def test_a_model_that_was_rolled_back_is_not_pushed_again(do, tmp_path, make_model):
    folder, no_check = tmp_path / "serving", lambda copy: None
    push_model(make_model(tmp_path / "first", b"first"), folder, check=no_check, now=lambda: 1.0)
    first = list_versions(folder)
    version = do().get_string_custom_property("pushed_version")
    restored = roll_back(folder, reason="worse", check=no_check)
    pushed = do()
    assert pushed.get_int_custom_property("pushed") == 0
    assert str(folder) in pushed.get_string_custom_property("reason")
    assert list_versions(folder) == [*first, int(version), restored.version]
    push_model(tmp_path / "model" / "Format-Serving", folder, check=no_check)  # by hand
    roll_back(folder, reason="worse", to=first[0], check=no_check)
    roll_back(folder, reason="better after all", to=int(version), check=no_check)
    assert do().get_int_custom_property("pushed_is_new") == 0


@pytest.mark.reliability("torn file", "push")
def test_only_the_files_that_were_evaluated_are_pushed(do, tmp_path):
    model = tmp_path / "model" / "Format-Serving"
    digest = build_manifest(model).digest
    (model / "assets" / "label_map.pbtxt").write_text("item { id: 1 name: 'dog' }")
    with pytest.raises(InputError, match=rf"model: the files .*{digest[:12]} then"):
        do(blessed_digest=digest)
    assert list_versions(tmp_path / "serving") == []
    (model / "assets" / "label_map.pbtxt").write_text("item { id: 1 name: 'cat' }")
    assert do(blessed_digest=digest).get_int_custom_property("pushed") == 1


@pytest.mark.parametrize(
    ("items", "allowed"),
    [
        ({1: "cat", 2: "dog"}, {"grow", "any"}),  # one more
        ({1: "cat", 7: "dog"}, {"grow", "any"}),  # with a gap
        ({1: "ant", 2: "cat"}, {"any"}),  # renumbered
        ({1: "ant"}, {"any"}),  # renamed
        ({2: "cat"}, {"any"}),
        ({}, {"any"}),  # no label map
    ],
)
@pytest.mark.parametrize("setting", ["none", "grow", "any"])
def test_other_classes_are_pushed_only_if_the_run_file_allows_exactly_that(
    items, allowed, setting, do, make_model, tmp_path, monkeypatch
):
    push_model(make_model(tmp_path / "first"), tmp_path / "serving", check=lambda copy: None, now=lambda: 1.0)
    model = tmp_path / "model" / "Format-Serving"
    (model / "saved_model.pb").write_bytes(b"other")
    (model / "assets" / "label_map.pbtxt").unlink()
    if items:
        write_label_map(model / "assets" / "label_map.pbtxt", LabelMap(tuple(items.items())))
    pushed = do(settings=Push(allow_class_change=setting))
    assert pushed.get_int_custom_property("pushed") == int(setting in allowed)
    if setting not in allowed:
        command = pushed.get_string_custom_property("reason").partition("your reason: ")[2]
        monkeypatch.setitem(push_model.__kwdefaults__, "check", lambda copy: None)
        assert detloom_command(*shlex.split(command)[1:]).output.startswith("Pushed version")


@pytest.mark.parametrize(
    ("address", "how"),
    [
        (
            "minio://b/model",
            "on a machine that has {serving}, copy minio://b/model to a folder MODEL, with your reason: detloom push ",
        ),
        ("gs://b/model", "on a machine that has {serving}, with your reason: detloom push gs://b/model --to {serving}"),
    ],
)
def test_in_a_container_the_command_names_no_path_of_the_container(do, make_model, tmp_path, address, how):
    served = make_model(tmp_path / "first") / "assets" / "label_map.pbtxt"
    served.write_text("item { id: 1 name: 'dog' }")
    push_model(tmp_path / "first", tmp_path / "serving", check=lambda copy: None, now=lambda: 1.0)
    reason = do(card=True, address=address).get_string_custom_property("reason")
    assert how.format(serving=tmp_path / "serving") in reason
    assert f"{tmp_path}/model" not in reason
    assert "--card" not in reason


def test_model_card_is_stored_in_the_version(do, read_manifest, tmp_path):
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "model_card.json").write_text("{}")
    path = Path(do(card=True).get_string_custom_property("pushed_destination"))
    assert (path / "assets.extra" / "model_card.json").read_text() == "{}"
    assert "assets.extra/model_card.json" in read_manifest(path).files


def test_settings_are_passed_to_the_push(do, tmp_path, monkeypatch):
    seen = {}

    def push_model(model_dir, push_dir, **options):
        seen.update(options)
        raise InputError("seen")

    monkeypatch.setattr(executor_module, "push_model", push_model)
    with pytest.raises(InputError, match="seen"):
        do(settings=Push(keep_versions=3, load_seconds=7.0, lock_seconds=9.0))
    assert (seen["keep_versions"], seen["lock_seconds"]) == (3, 9.0)
    assert seen["check"].keywords == {"seconds": 7.0}


def test_model_is_pushed_to_a_bucket(do, google_bucket):
    pushed = do(destination=make_destination("gs://bucket/serving"))
    (version,) = list_versions("gs://bucket/serving")
    assert pushed.get_string_custom_property("pushed_destination") == f"gs://bucket/serving/{version}"
    assert google_bucket.contents()[f"serving/{version}/saved_model.pb"] == b"graph"


def test_destination_other_than_a_filesystem_is_refused(do):
    with pytest.raises(InputError, match="push_destination: "):
        do(destination=pusher_pb2.PushDestination())


def test_component_is_tfx_pusher_with_one_more_input():
    channels = {
        "model": Channel(type=Model),
        "model_blessing": Channel(type=ModelBlessing),
        "model_card": Channel(type=ModelCard),
    }
    destination = make_destination("/serving")
    settings = Push(keep_versions=2)
    pusher = DetectionPusher(**channels, push_destination=destination, settings=settings, custom_config={"run": "a"})
    assert isinstance(pusher, StockPusher)
    assert (pusher.id, set(pusher.inputs)) == ("DetectionPusher", set(channels))
    assert pusher.outputs["pushed_model"].type is PushedModel
    assert pusher.exec_properties["push_destination"] == proto_utils.proto_to_json(destination)
    config = json_utils.loads(pusher.exec_properties["custom_config"])
    assert (config["run"], json.loads(config["push"])["keep_versions"]) == ("a", 2)
    assert pusher.executor_spec.class_path == "detloom.components.pusher.component.Executor"
    alone = DetectionPusher(Channel(type=Model), push_destination=destination)
    assert set(alone.inputs) == {"model"}
