import re

import pytest

from detloom.pipelines.lineage.find_version import VersionSource
from detloom.pipelines.lineage.formats import format_mermaid, format_text
from detloom.pipelines.lineage.graph import LineageGraph, make_node
from detloom.pipelines.lineage.trace import trace

HOSTILE = "</text><script>alert(1)</script>\x1b[31m\x00\ud800\n&amp;\"'"


@pytest.fixture(scope="module")
def graph(two_runs):
    return trace(VersionSource(version=200, push_dir=str(two_runs.push_dir), metadata_file=two_runs.path))


@pytest.fixture(scope="module")
def hostile_graph():
    graph = LineageGraph(root="version:1")
    graph.add(make_node("version:1", "version", HOSTILE, [HOSTILE, "x" * 500, "語" * 100], {"a": HOSTILE}))
    graph.add(make_node("data:1", "data", "Data", [""], {"folder": "https://me:secret@host/a"}, files_gone=True))
    graph.connect("data:1", "version:1", "<b>")
    graph.note(HOSTILE)
    return graph


def test_text_is_a_tree_from_the_version_to_the_data(graph, two_runs):
    model, base = two_runs.second["model"], two_runs.first["model"]
    lines = [line.split("; ")[0] for line in format_text(graph).splitlines()]
    assert lines == [
        "Version 200: pushed 2026-03-01 12:30 UTC",
        f"  Model: artifact {model}",
        "    Checkpoint of step 30: best of 40 steps",
        "      Examples: train 20, eval 5, test 3",
        "        Data span 2: span-2",
        "      Configuration: mobilenet_v2 + Fpn",
        f"      warm start: Model: artifact {base}",
        "        Checkpoint of step 30: best of 40 steps",
        "          Examples: train 20, eval 5, test 3",
        "            Data span 1: span-1",
        "            Data checks: warned: Of 21 checks, 1 warned.",
        f"          {lines[11].strip()}",
        "  Evaluation: blessed: AP 0.500, AP50 0.750 on test",
        f"    baseline: Model (artifact {base}, see above)",
        "    Data checks: warned: Of 21 checks, 1 warned.",
        "  replaced: Version 100: pushed 2026-03-01 12:30 UTC",
        f"    Model (artifact {base}, see above)",
    ]
    assert lines[11].strip().startswith("Configuration (config ")


@pytest.mark.reliability("hostile input", "metadata")
def test_untrusted_text_is_printable_and_stays_on_its_line(hostile_graph):
    text = format_text(hostile_graph)
    assert len(text.splitlines()) == 3
    assert all(each.isprintable() for each in text.replace("\n", ""))


def test_mermaid_has_a_line_per_node_and_edge(graph):
    first, _, *lines = format_mermaid(graph).splitlines()
    assert first == "flowchart LR"
    boxes = lines[: len(graph.nodes)]
    assert boxes[0] == '  n0["Version 200<br>pushed 2026-03-01 12:30 UTC<br>the highest version"]'
    assert boxes[1].startswith('  n1["Model<br>artifact ')
    arrows = lines[len(graph.nodes) :]
    assert arrows[0] == "  n1 --> n0"
    assert len(arrows) == len(graph.labels)
    labels = sorted(re.findall(r'-- "([a-z ]+)" -->', "\n".join(arrows)))
    assert labels == ["baseline", "replaced", "warm start"]


@pytest.mark.reliability("hostile input", "metadata")
def test_mermaid_escapes_untrusted_text(hostile_graph):
    lines = format_mermaid(hostile_graph).splitlines()
    version, data, edge, note = lines[2:]
    assert version.startswith('  n0["#60;/text#62;#60;script#62;alert(1)#60;/script#62;')
    assert '#38;amp#59;#34;#39;"' not in version  # the label has more lines
    assert "#38;amp#59;#34;#39;<br>" in version
    assert re.fullmatch(r'  n0\["[^"\[\]{}|`]*"\]', version)
    assert data == '  n1["Data<br>files gone"]:::gone'
    assert edge == '  n1 -- "#60;b#62;" --> n0'
    assert note.startswith("  %% #60;/text")
    assert "secret" not in str(hostile_graph.to_dict())


def test_json_has_all_facts_and_is_the_same_for_the_same_metadata(graph, two_runs):
    content = graph.to_dict()
    assert content["root"] == "version:200"
    (data, _) = [node for node in content["nodes"] if node["kind"] == "data"]
    assert (data["facts"]["folder"], data["files_gone"]) == ("/data/digits/span-2", False)
    assert {"source": content["nodes"][1]["id"], "target": "version:200", "label": ""} in content["edges"]
    again = trace(VersionSource(version=200, push_dir=str(two_runs.push_dir), metadata_file=two_runs.path))
    assert again.to_dict() == content
