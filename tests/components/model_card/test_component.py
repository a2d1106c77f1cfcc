import pytest
from tfx.types import Channel, artifact_utils
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun

from detloom.components import artifact_types
from detloom.components.model_card.card import ModelCardParams
from detloom.components.model_card.component import Executor, ModelCard
from detloom.components.properties import arguments_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.model_card import ModelCardSettings

PARAMS = ModelCardParams(
    name="pets",
    split="holdout",
    stated=ModelCardSettings(purpose="Finds pets.", limits=("Only indoors.",)),
    evaluator=EvaluatorSettings(wanted_precision=0.5),
    trainer_fingerprint="aa",
    code_fingerprint="bb",
)
TYPES = {
    "model": Model,
    "examples": Examples,
    "evaluation": ModelEvaluation,
    "blessing": ModelBlessing,
    "dataset_report": artifact_types.DatasetReport,
    "model_run": ModelRun,
    "rejects": artifact_types.Rejects,
}


@pytest.fixture
def artifacts(folders, tmp_path):
    """Inputs with ids 1, 2, ... in the order of TYPES, and the output."""
    uris = {"evaluation": "evaluation", "dataset_report": "report"}
    inputs = {}
    for number, (name, kind) in enumerate(TYPES.items(), start=1):
        artifact = kind()
        artifact.uri, artifact.id = str(folders / uris.get(name, name)), number
        inputs[name] = [artifact]
    examples = inputs["examples"][0]
    examples.split_names = artifact_utils.encode_split_names(["train", "eval", "test"])
    examples.set_int_custom_property("span", 4)
    examples.set_string_custom_property("input_fingerprint", "num_files:9")
    inputs["blessing"][0].set_int_custom_property("baseline_model_id", 99)
    output = artifact_types.ModelCard()
    output.uri = str(tmp_path / "card")
    return inputs, {"model_card": [output]}


def test_only_the_model_is_required():
    node = ModelCard(Channel(type=Model), **arguments_of(PARAMS))
    assert set(node.inputs) == {"model"}
    assert {name: channel.type for name, channel in node.outputs.items()} == {"model_card": artifact_types.ModelCard}
    assert arguments_of(ModelCardParams.from_properties(node.exec_properties)) == arguments_of(PARAMS)


def test_the_node_accepts_all_optional_inputs():
    channels = {name: Channel(type=kind) for name, kind in TYPES.items()}
    assert set(ModelCard(name="pets", **channels).inputs) == set(TYPES)


def test_do_writes_the_card_with_tfx_metadata(artifacts, tmp_path):
    Executor().Do(*artifacts, PARAMS.to_properties())
    assert {path.name for path in (tmp_path / "card").iterdir()} == {
        "model_card.html",
        "model_card.json",
        "model_card.md",
    }
    text = (tmp_path / "card/model_card.md").read_text()
    for part in (
        "# pets",
        "Finds pets.",
        "- Only indoors.",
        "split 'holdout'",
        "a precision of 50.0 %",
        "- **Examples, span**: 4",
        r"- **Examples, ingested files**: num\_files:9",
        "- **Model in ML Metadata**: artifact 1",
        "- **Evaluation in ML Metadata**: artifact 3",
        "- **Baseline in ML Metadata**: artifact 99",
        "- **Training code fingerprint**: aa",
    ):
        assert part in text


def test_do_works_with_the_model_alone(artifacts, tmp_path):
    inputs, outputs = artifacts
    Executor().Do({"model": inputs["model"]}, outputs, PARAMS.to_properties())
    assert "No evaluation was given." in (tmp_path / "card/model_card.md").read_text()


def test_an_error_leaves_no_card(artifacts, tmp_path):
    inputs, outputs = artifacts
    inputs["evaluation"][0].uri = str(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"nowhere/metrics\.json: no such file"):
        Executor().Do(inputs, outputs, PARAMS.to_properties())
    assert not (tmp_path / "card").exists()
