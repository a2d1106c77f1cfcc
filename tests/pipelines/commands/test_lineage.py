import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from detloom.pipelines.commands.lineage import lineage


@pytest.fixture
def version(tmp_path):
    """Return the folder of a pushed version in a small workspace with ML Metadata."""
    import ml_metadata as mlmd
    from ml_metadata.proto import metadata_store_pb2 as pb

    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(tmp_path / "metadata.sqlite")
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    store = mlmd.MetadataStore(config)
    model_type = store.put_artifact_type(pb.ArtifactType(name="Model"))
    store.put_artifacts([pb.Artifact(type_id=model_type, uri="/models/6")])
    folder = tmp_path / "serving" / "7"
    folder.mkdir(parents=True)
    record = {"version": 7, "model_uri": "/models/6", "previous_version": None}
    (tmp_path / "serving" / "push_record.jsonl").write_text(json.dumps(record) + "\n")
    return folder


def run(*arguments):
    return CliRunner().invoke(lineage, [str(each) for each in arguments])


def test_the_graph_is_a_text_json_or_a_diagram(version):
    result = run(version)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "Version 7: the highest version"
    assert lines[1].startswith("  Model: artifact 1; version 7; ")
    assert lines[1].endswith("; files gone")
    assert len(lines[2:]) == 2  # notes: no producer and no evaluation
    assert all("artifact 1" in line for line in lines[2:])
    found = json.loads(run(version, "--json").output)
    assert [node["id"] for node in found["nodes"]] == ["version:7", "artifact:1"]
    assert found["edges"] == [{"source": "artifact:1", "target": "version:7", "label": ""}]
    lines = run(version, "--mermaid").output.splitlines()
    assert (lines[0], lines[-3]) == ("flowchart LR", "  n1 --> n0")


def test_depth_limits_warm_starts():
    result = run("7", "--depth", "51")
    assert result.exit_code == 2
    assert "--depth" in result.output


def test_neither_tensorflow_nor_tfx_is_imported(version):
    code = (
        "import sys; from detloom.pipelines.commands.lineage import lineage; "
        f"lineage([{str(version)!r}, '--mermaid'], standalone_mode=False); "
        "print([name for name in ('tensorflow', 'tfx', 'apache_beam') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
