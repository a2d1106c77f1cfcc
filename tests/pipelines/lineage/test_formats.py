import xml.etree.ElementTree as ET

import pytest

from detloom.pipelines.lineage.formats import format_page, format_svg, format_text
from detloom.pipelines.lineage.graph import GraphBuilder, make_node
from detloom.pipelines.lineage.places import Places
from detloom.pipelines.lineage.trace import trace

_SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\x1b[31m\x00\ud800\n&amp;\"'"


@pytest.fixture(scope="module")
def graph(two_runs):
    return trace(Places(version=200, push_dir=str(two_runs.push_dir), metadata_file=two_runs.path))


@pytest.fixture(scope="module")
def hostile_graph():
    builder = GraphBuilder()
    builder.add(make_node("version:1", "version", HOSTILE, [HOSTILE, "x" * 500, "語" * 100], {"a": HOSTILE}))
    builder.add(make_node("data:1", "data", "Data", [""], {"folder": "https://me:secret@host/a"}, is_gone=True))
    builder.connect("data:1", "version:1", "<b>")
    builder.note(HOSTILE)
    return builder.build("version:1")


def test_text_is_a_tree_from_the_version_to_the_data(graph, two_runs):
    model, base = two_runs.second["model"], two_runs.first["model"]
    lines = [line.split("; ")[0] for line in format_text(graph).splitlines()]
    assert lines == [
        "Version 200: pushed 2026-03-01 12:30 UTC",
        f"  Model: artifact {model}",
        "    Checkpoint of step 30: best of 40 steps",
        "      Examples: train 20, eval 5, test 3",
        "        Data span 2: span-2",
        f"        Schema check: artifact {two_runs.second['anomalies']}",
        "      Configuration: mobilenet_v2 + Fpn",
        f"      warm start: Model: artifact {base}",
        "        Checkpoint of step 30: best of 40 steps",
        "          Examples: train 20, eval 5, test 3",
        "            Data span 1: span-1",
        "            Data checks: warned: Of 21 checks, 1 warned.",
        f"            Schema check: artifact {two_runs.first['anomalies']}",
        f"          {lines[13].strip()}",
        "  Evaluation: blessed: AP 0.500, AP50 0.750 on test",
        f"    baseline: Model (artifact {base}, see above)",
        "    Data checks: warned: Of 21 checks, 1 warned.",
        "  replaced: Version 100: pushed 2026-03-01 12:30 UTC",
        f"    Model (artifact {base}, see above)",
    ]
    assert lines[13].strip().startswith("Configuration (config ")


@pytest.mark.reliability("hostile input", "metadata")
def test_untrusted_text_is_printable_and_stays_on_its_line(hostile_graph):
    text = format_text(hostile_graph)
    assert len(text.splitlines()) == 3
    assert all(each.isprintable() for each in text.replace("\n", ""))


def test_svg_is_xml_with_a_box_per_node_and_a_path_per_edge(graph):
    root = ET.fromstring(format_svg(graph))
    assert root.tag == f"{_SVG}svg"
    assert len(root.findall(f".//{_SVG}rect[@class='box']")) == len(graph.nodes)
    assert len(root.findall(f".//{_SVG}path[@class='edge']")) == len(graph.edges)
    labels = sorted(each.text for each in root.findall(f".//{_SVG}text[@class='label']"))
    assert labels == ["baseline", "replaced", "warm start"]


@pytest.mark.reliability("hostile input", "metadata")
def test_svg_escapes_untrusted_text(hostile_graph):
    svg = format_svg(hostile_graph)
    root = ET.fromstring(svg)
    assert root.findall(f".//{_SVG}script") == []
    assert "secret" not in svg
    box = root.find(f".//{_SVG}g[@class='version']")
    assert len(box.findall(f"{_SVG}text")) == 5  # the title and at most four lines
    assert all(len(each.text) <= 32 for each in box.findall(f"{_SVG}text"))


def test_svg_loads_no_other_files_and_supports_dark_mode(graph):
    svg = format_svg(graph)
    assert "prefers-color-scheme: dark" in svg
    assert svg.count("http") == 1  # the namespace
    assert "url(#lineage-tip)" in svg


def test_same_graph_gives_the_same_bytes(two_runs, graph):
    again = trace(Places(version=200, push_dir=str(two_runs.push_dir), metadata_file=two_runs.path))
    assert format_svg(again) == format_svg(graph)
    assert format_page(again) == format_page(graph)
    assert again.to_dict() == graph.to_dict()


def test_page_contains_the_drawing_and_all_facts(graph):
    page = format_page(graph)
    assert page.count("<svg") == 1
    assert '<td class="name">/data/digits/span-2</td>' in page
    assert "script-src 'sha256-" in page


@pytest.mark.reliability("hostile input", "metadata")
def test_page_escapes_untrusted_text(hostile_graph):
    page = format_page(hostile_graph)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1  # the script that sorts
