import json

import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage.find_version import VersionSource
from detloom.pipelines.lineage.formats import format_text
from detloom.pipelines.lineage.trace import trace
from detloom.schemas.errors import InputError


def graph_of(runs, version, **options):
    return trace(VersionSource(version=version, push_dir=str(runs.push_dir), metadata_file=runs.path), **options)


def nodes_of(graph, kind):
    return [node for node in graph.nodes.values() if node.kind == kind]


def titles_of_edges(graph):
    titles = {node_id: node.title for node_id, node in graph.nodes.items()}
    return {(titles[source], label, titles[target]) for (source, target), label in graph.labels.items()}


def test_model_without_warm_start_has_one_span_and_its_nodes_the_ids_of_the_store(two_runs):
    graph, first = graph_of(two_runs, 100), two_runs.first
    assert titles_of_edges(graph) == {
        ("Data span 1", "", "Examples"),
        ("Examples", "", "Data checks: warned"),
        ("Examples", "", "Checkpoint of step 30"),
        ("Configuration", "", "Checkpoint of step 30"),
        ("Checkpoint of step 30", "", "Model"),
        ("Model", "", "Evaluation: blessed"),
        ("Examples", "", "Evaluation: blessed"),
        ("Data checks: warned", "", "Evaluation: blessed"),
        ("Evaluation: blessed", "", "Version 100"),
        ("Model", "", "Version 100"),
    }
    assert (graph.root, graph.notes) == ("version:100", [])
    assert {node.id for node in nodes_of(graph, "model")} == {f"artifact:{first['model']}"}
    assert {node.id for node in nodes_of(graph, "examples")} == {f"artifact:{first['examples']}"}
    assert [node.id for node in nodes_of(graph, "checkpoint")] == ["execution:3"]  # the third execution


def test_warm_start_adds_the_spans_of_the_earlier_model(two_runs):
    graph = graph_of(two_runs, 200)
    assert [node.title for node in nodes_of(graph, "data")] == ["Data span 2", "Data span 1"]
    edges = titles_of_edges(graph)
    assert ("Model", "warm start", "Checkpoint of step 30") in edges
    assert ("Model", "baseline", "Evaluation: blessed") in edges
    assert ("Version 100", "replaced", "Version 200") in edges
    assert ("Model", "", "Version 100") in edges
    earlier = graph.nodes[f"artifact:{two_runs.first['model']}"]
    assert earlier.lines[1] == "version 100"


def test_nodes_contain_their_main_facts(two_runs):
    graph = graph_of(two_runs, 200)
    evaluation = nodes_of(graph, "evaluation")[0]
    # The metrics of the second run are twice those of the first: AP 0.5 and AP50 0.75.
    assert evaluation.lines == ("AP 0.500, AP50 0.750 on test", "baseline AP 0.250")
    assert evaluation.facts["verdict"] == "Blessed: yes."
    assert nodes_of(graph, "examples")[0].lines == ("train 20, eval 5, test 3", "2 of 30 records quarantined")
    assert nodes_of(graph, "data")[0].lines == ("span-2", "coco", "42 files, sha256 000000000000")
    assert nodes_of(graph, "data")[0].facts["folder"] == "/data/digits/span-2"
    config = nodes_of(graph, "config")
    assert len(config) == 1  # both runs used the same configuration
    assert config[0].lines[:3] == ("mobilenet_v2 + Fpn", "320 x 320 px", "40 steps, batch 8")
    assert config[0].facts["learning rate"] == "{'type': 'Constant', 'learning_rate': 0.001}"
    checkpoint = nodes_of(graph, "checkpoint")[0]
    assert checkpoint.lines[:2] == ("best of 40 steps", "AP 0.500 on eval")
    assert checkpoint.facts["code of the trainer"] == "feed"


def test_limit_of_warm_starts_is_noted(two_runs):
    graph = graph_of(two_runs, 200, max_warm_starts=0)
    assert [node.title for node in nodes_of(graph, "data")] == ["Data span 2"]
    (note,) = graph.notes
    assert f"artifact {two_runs.first['model']};" in note
    assert "--depth" in note


def test_cached_execution_is_traced_to_the_original_one(own_runs):
    run = own_runs.run("third")
    made = own_runs.second
    own_runs.execution(
        "tfx.components.trainer.component.Trainer",
        run,
        {"examples": [made["examples"]]},
        {"model": [made["model"]]},
        state=pb.Execution.CACHED,
    )
    assert [node.id for node in nodes_of(graph_of(own_runs, 200), "checkpoint")] == ["execution:8", "execution:3"]


def test_each_span_is_a_data_node(own_runs):
    run = own_runs.run("merged")
    examples = own_runs.artifact("Examples", "examples/merged", span=9)
    model = own_runs.artifact("Model", "model/merged")
    folders = [f"span-{number}" for number in range(1, 15)]
    gen = "detloom.components.example_gen.component.DetectionExampleGen"
    own_runs.execution(gen, run, {}, {"examples": [examples]}, input_base="/data", data_folders=json.dumps(folders))
    own_runs.execution("Trainer", run, {"examples": [examples]}, {"model": [model]}, custom_config="{")
    own_runs.push(300, own_runs.uri(model), 200)
    graph = graph_of(own_runs, 300)
    data = nodes_of(graph, "data")
    assert [node.lines[0] for node in data] == folders
    assert [node.title for node in data] == ["Data"] * 13 + ["Data span 9"]
    assert data[-1].lines == ("span-14", "with 13 more")
    assert data[-1].facts["folder"] == "/data/span-14"
    (note,) = graph.notes
    assert f"evaluation of artifact {model}" in note
    assert nodes_of(graph, "config") == []


def test_deleted_files_are_marked_and_other_facts_kept(own_runs):
    (own_runs.push_dir / "100").rmdir()
    (own_runs.folder / "artifacts").rename(own_runs.folder / "elsewhere")
    graph = graph_of(own_runs, 100)
    gone = {node.title for node in graph.nodes.values() if node.files_gone}
    assert gone == {"Version 100", "Model", "Training", "Examples", "Data checks", "Evaluation: blessed"}
    evaluation = nodes_of(graph, "evaluation")[0]
    assert evaluation.lines == ("AP 0.250, AP50 0.375 on test", "files gone")


@pytest.mark.reliability("torn file", "metadata")
def test_invalid_files_are_ignored(own_runs):
    for name, file, text in (
        ("rejects", "report.json", '{"splits": {"train": 7}, "num_in": ' + "9" * 400 + ', "num_quarantined": true}'),
        ("report", "report.json", "[" * 100_000),
        ("model_run", "training_summary.json", '{"best_step": "<script>", "best": [], "num_steps": null}'),
        ("evaluation", "metrics.json", "\xff"),
    ):
        own_runs.write(own_runs.first[name], file, 0)
        path = f"{own_runs.uri(own_runs.first[name])}/{file}"
        with open(path, "w", encoding="latin-1") as opened:
            opened.write(text)
    graph = graph_of(own_runs, 100)
    titles = [node.title for node in graph.nodes.values() if node.kind in ("check", "checkpoint")]
    assert titles == ["Training", "Data checks"]
    assert nodes_of(graph, "examples")[0].lines == (f"artifact {own_runs.first['examples']}",)


@pytest.mark.reliability("hostile input", "metadata")
def test_cycle_in_ml_metadata_ends(own_runs):
    run = own_runs.run("circle")
    model = own_runs.artifact("Model", "model/circle")
    own_runs.execution("Trainer", run, {"base_model": [model]}, {"model": [model]})
    own_runs.push(300, own_runs.uri(model), 300)
    graph = graph_of(own_runs, 300)
    assert [node.title for node in graph.nodes.values()] == ["Version 300", "Model", "Training"]
    assert len(format_text(graph).splitlines()) == 5  # the model is repeated once; no evaluation


def test_rollback_shows_the_copied_version(own_runs):
    model = own_runs.uri(own_runs.first["model"])
    own_runs.push(300, model, 200, action="rollback", of_version=100, reason="worse at night")
    graph = graph_of(own_runs, 300)
    facts = graph.nodes["version:300"].facts
    assert (facts["action"], facts["of_version"], facts["reason"]) == ("rollback", "100", "worse at night")
    assert facts["made by"] == "Pusher, execution 5"
    assert ("Version 200", "replaced", "Version 300") in titles_of_edges(graph)
    assert nodes_of(graph, "model")[0].lines[1] == "version 100, 300"


def test_manual_push_of_the_saved_model_in_an_artifact_is_found(own_runs):
    own_runs.push(300, own_runs.uri(own_runs.second["model"]) + "/Format-Serving", 200, reason="by hand: night shift")
    graph = graph_of(own_runs, 300)
    assert nodes_of(graph, "model")[0].lines[1] == "version 200, 300"
    assert nodes_of(graph, "evaluation")[0].title == "Evaluation: blessed"  # the last evaluation of that model


def test_fine_tune_checkpoint_is_a_node_without_its_password(own_runs):
    run = own_runs.run("tuned")
    model = own_runs.artifact("Model", "model/tuned")
    config = {"train": {"fine_tune_checkpoint": "https://me:secret@example.com/zoo/ckpt-0"}}
    custom = json.dumps({"trainer_config": json.dumps(config)})
    own_runs.execution("Trainer", run, {}, {"model": [model]}, custom_config=custom)
    own_runs.push(300, own_runs.uri(model), 200)
    weights = nodes_of(graph_of(own_runs, 300), "weights")
    assert weights[0].lines == ("zoo/ckpt-0",)
    assert "secret" not in str(graph_of(own_runs, 300).to_dict())


def test_hyperparameters_of_a_search_are_a_node(own_runs):
    run = own_runs.run("search")
    found = own_runs.artifact("HyperParameters", "best")
    model = own_runs.artifact("Model", "model/searched")
    own_runs.write(found, "best_hyperparameters.txt", {"values": {"learning_rate_factor": 0.5, "seed": 3}})
    own_runs.execution("Tuner", run, {"examples": [own_runs.first["examples"]]}, {"best_hyperparameters": [found]})
    own_runs.execution("Trainer", run, {"hyperparameters": [found]}, {"model": [model]})
    own_runs.push(300, own_runs.uri(model), 200)
    graph = graph_of(own_runs, 300)
    assert nodes_of(graph, "search")[0].lines == ("learning_rate_factor 0.5", "seed 3")
    assert ("Examples", "", "Hyperparameters") in titles_of_edges(graph)


def test_unknown_version_and_metadata_of_another_workspace_are_refused(own_runs):
    with pytest.raises(InputError, match=r"push_record\.jsonl: version 7 .*100, 200"):
        graph_of(own_runs, 7)
    own_runs.push(300, "/elsewhere/model/6", 200)
    with pytest.raises(InputError, match=r"version 300.*/elsewhere/model/6.*--workspace"):
        graph_of(own_runs, 300)


def test_trace_changes_no_file(two_runs):
    before = two_runs.path.read_bytes()
    names = sorted(path.name for path in two_runs.folder.iterdir())
    graph_of(two_runs, 200)
    assert two_runs.path.read_bytes() == before
    assert sorted(path.name for path in two_runs.folder.iterdir()) == names
