"""The functions that the containers run: configurations by content, and what decides about a push."""

import json
from pathlib import Path

import pytest
from kfp import dsl

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.pusher.push import NotPushedError, PushResult
from detloom.pipelines.kfp_components import steps
from detloom.schemas.contracts.metric_names import METRIC_NAMES

RUN_FILE = "# a comment\nname: cells\ndata: {path: /data/cells, split_by_ratio: {}}\n"
FLOW_STYLE = "data: {path: /data/cells}\nname: cells\n"
PIPELINE_CONFIG = "# a comment\n\nmodel {\n  ssd {\n  }\n}\n"
CONFIG_JSON = '{\n "model": {}\n}\n'
NO_METRICS = dict.fromkeys(METRIC_NAMES, -1.0)


@pytest.mark.parametrize(
    ("config", "suffix"),
    [(RUN_FILE, ".yaml"), (FLOW_STYLE, ".yaml"), (PIPELINE_CONFIG, ".config"), (CONFIG_JSON, ".json")],
)
def test_content_becomes_a_file_of_its_format(config, suffix):
    with steps._config_file(config) as source:
        assert Path(source).suffix == suffix
        assert Path(source).read_text() == config
    assert not Path(source).exists()


@pytest.mark.parametrize("config", ["", "efficientdet_lite0", "/data/cells.yaml"])
def test_a_name_or_a_path_is_kept(config):
    with steps._config_file(config) as source:
        assert source == config


@pytest.fixture
def push(tmp_path, monkeypatch):
    """Return a function that runs the step and returns the address and the arguments of `push_model`."""
    model = dsl.Model(uri=str(tmp_path / "model"))
    evaluation = dsl.Artifact(uri=str(tmp_path / "evaluation"))
    for folder in (model, evaluation):
        Path(folder.path).mkdir()
    (Path(model.path) / "saved_model.pb").touch()
    metrics = {"candidate": {**NO_METRICS, "AP": 0.5}, "baseline": None}
    (Path(evaluation.path) / "metrics.json").write_text(json.dumps(metrics))
    calls = []

    def run(*, blessed=True, error=None, **arguments):
        def push_model(*given, **named):
            calls.append((given, named))
            if error is not None:
                raise error
            return PushResult(version=3, address="/serving/3", digest="", previous_version=None, is_new=True)

        monkeypatch.setattr("detloom.components.pusher.push.push_model", push_model)
        decision = BlessingDecision(
            blessed=blessed, reason="AP50 0.900 is at least 0.700", gates=(), model_digest="evaluated"
        )
        (Path(evaluation.path) / "decision.json").write_text(json.dumps(decision.to_dict()))
        address = tmp_path / "address"
        steps.push(model, evaluation, "/serving", address=str(address), **arguments)
        return address.read_text(), calls

    return run


def test_a_blessed_model_is_pushed_with_its_origin(push):
    address, calls = push(keep_versions=2)
    assert address == "/serving/3"
    (((model, push_to), named),) = calls
    assert (model.name, push_to, named["expected_digest"]) == ("model", "/serving", "evaluated")
    assert (named["keep_versions"], named["allow_class_change"], named["allow_rolled_back"]) == (2, "none", False)
    assert named["origin"].metrics == {"AP": 0.5}  # AP50 was not measured
    assert named["origin"].blessing["sentence"] == "Blessed: AP50 0.900 is at least 0.700"


def test_a_model_that_is_not_blessed_or_was_rolled_back_is_not_pushed(push):
    assert push(blessed=False) == ("", [])
    address, calls = push(error=NotPushedError("it was rolled back"))
    assert (address, len(calls)) == ("", 1)


def test_the_version_that_serves_is_the_baseline_and_nothing_before_the_first_push(tmp_path, tiny_model_dir):
    (tmp_path / "serving").mkdir()
    for production in ("", str(tmp_path / "serving"), str(tmp_path / "missing")):
        with steps._production_model(production, tiny_model_dir) as baseline:
            assert baseline is None
    candidate = tmp_path / "model"
    candidate.mkdir()
    (candidate / "saved_model.pb").write_bytes(b"other")
    with steps._production_model(str(tiny_model_dir.parent), candidate) as baseline:
        assert (baseline / "saved_model.pb").read_bytes() == (tiny_model_dir / "saved_model.pb").read_bytes()
