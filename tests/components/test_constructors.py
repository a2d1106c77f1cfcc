"""All components: keyword arguments with the defaults of the parameters, and a code fingerprint that they fill in."""

import dataclasses
import inspect
import json

import pytest
from tfx import v1 as tfx
from tfx.types import Channel, standard_artifacts

from detloom.components import artifact_types
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.evaluator.component import DetectionEvaluator
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.fingerprints import source_fingerprint
from detloom.components.model_card.card import ModelCardParams
from detloom.components.model_card.component import ModelCard
from detloom.components.notifier.component import Notifier, NotifierParams
from detloom.components.pusher.component import DetectionPusher
from detloom.components.retrain.component import RetrainDecision, RetrainParams, TrainingRecord
from detloom.schemas.run_file.notifications import Notifications, Webhook
from detloom.schemas.run_file.schedule import Retrain

EXAMPLES, MODEL = Channel(type=standard_artifacts.Examples), Channel(type=standard_artifacts.Model)
PARAMETERS = {
    DatasetValidator: DatasetValidatorParams,
    DetectionEvaluator: EvaluatorParams,
    ModelCard: ModelCardParams,
    Notifier: NotifierParams,
    RetrainDecision: RetrainParams,
    TrainingRecord: RetrainParams,
}
DESTINATION = tfx.proto.PushDestination(filesystem=tfx.proto.PushDestination.Filesystem(base_directory="/serving"))


def make_nodes():
    """Return each component with as few arguments as it takes."""
    report, decision = (Channel(type=kind) for kind in (artifact_types.DatasetReport, artifact_types.RetrainDecision))
    blessing = Channel(type=standard_artifacts.ModelBlessing)
    retrain = Retrain(max_age_days=7.0, records="/records")
    return [
        DetectionExampleGen("/data"),
        DatasetValidator(EXAMPLES),
        DetectionEvaluator(EXAMPLES, MODEL),
        ModelCard(MODEL, name="cells"),
        Notifier(pipeline="cells", notifications=Notifications(webhook=Webhook(url="env:HOOK"))),
        RetrainDecision(EXAMPLES, report, retrain=retrain),
        TrainingRecord(EXAMPLES, report, decision, MODEL, blessing, retrain=retrain),
        DetectionPusher(MODEL, push_destination=DESTINATION),
    ]


@pytest.mark.parametrize(("component", "params"), PARAMETERS.items(), ids=lambda each: each.__name__)
def test_a_default_of_the_constructor_is_that_of_the_parameter(component, params):
    arguments = inspect.signature(component).parameters
    fields = {item.name: item for item in dataclasses.fields(params) if item.name in arguments}
    assert fields
    for name, item in fields.items():
        has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        default = arguments[name].default
        assert (default is not inspect.Parameter.empty) == has_default, name
        if has_default and default is not None:  # None: the constructor makes the default
            assert default == item.default, name


def test_components_fill_in_the_fingerprint_of_their_code():
    for node in make_nodes():
        properties = node.exec_properties
        found = properties.get("code_fingerprint") or json.loads(properties["custom_config"])["code_fingerprint"]
        assert found == source_fingerprint(type(node).__module__), node.id


def test_parameters_that_tfx_sets_at_run_time_are_accepted():
    span = tfx.dsl.experimental.RuntimeParameter(name="span", ptype=str, default="{}")
    assert DetectionExampleGen("/data/{SPAN}", range_config=span).exec_properties["range_config"] is span
    target = tfx.dsl.experimental.RuntimeParameter(name="target", ptype=str, default="{}")
    assert DetectionPusher(MODEL, push_destination=target).exec_properties["push_destination"] is target


def test_the_pusher_takes_the_model_of_an_infra_validator():
    infra = Channel(type=standard_artifacts.InfraBlessing)
    assert set(DetectionPusher(infra_blessing=infra, push_destination=DESTINATION).inputs) == {"infra_blessing"}
    with pytest.raises(ValueError, match="model"):
        DetectionPusher(push_destination=DESTINATION)
