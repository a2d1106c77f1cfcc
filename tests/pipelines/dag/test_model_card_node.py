from detloom.components.model_card.card import ModelCardParams
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.schemas.run_file.read_run_file import read_run_file

STATED = """
model_card:
  purpose: Finds digits.
  limits: [Only on photographs.]
"""


def nodes_of(run_file):
    return {node.id: node for node in create_pipeline(read_run_file(run_file)).components}


def test_the_model_card_reads_the_whole_run_and_is_pushed(small_run):
    small_run.write_text(small_run.read_text() + STATED)
    nodes = nodes_of(small_run)
    card = nodes["ModelCard"]
    assert {name: channel.producer_component_id for name, channel in card.inputs.items()} == {
        "model": "Trainer",
        "examples": "DetectionExampleGen",
        "evaluation": "DetectionEvaluator",
        "blessing": "DetectionEvaluator",
        "dataset_report": "DatasetValidator",
        "model_run": "Trainer",
        "rejects": "DetectionExampleGen",
    }
    assert nodes["Pusher"].inputs["model_card"].producer_component_id == "ModelCard"
    params = ModelCardParams.from_properties(card.exec_properties)
    assert (params.name, params.split) == ("small", "test")
    assert params.stated.limits == ("Only on photographs.",)
    assert len(params.code_fingerprint) == len(params.trainer_fingerprint) == 16


def test_a_change_of_model_card_text_only_changes_the_card(small_run):
    before = nodes_of(small_run)
    small_run.write_text(small_run.read_text() + STATED)
    after = nodes_of(small_run)
    changed = {name for name in before if before[name].exec_properties != after[name].exec_properties}
    assert changed - {"Pusher"} == {"ModelCard"}  # the Pusher is never cached
