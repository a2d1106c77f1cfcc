"""A rollback holds: the pipeline compares with what serves, and pushes nothing that was rolled back."""

from pathlib import Path

import pytest

from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import list_versions, roll_back
from detloom.components.pusher.versions import open_destination, read_version_manifest
from detloom.pipelines.local.run_local import run_locally
from detloom.pipelines.local.summary import read_latest_run
from detloom.schemas.run_file.read_run_file import read_run_file


@pytest.mark.nightly
def test_after_a_rollback_the_served_model_is_the_baseline_and_the_other_does_not_return(small_run, tmp_path):
    serving = str(tmp_path / "serving")

    def run(learning_rate: str) -> dict:
        text = small_run.read_text()
        before = text.partition("learning_rate: 0")[2].split("}")[0]
        small_run.write_text(text.replace(f"learning_rate: 0{before}", f"learning_rate: {learning_rate}"))
        run_locally(read_run_file(small_run))
        return read_latest_run(Path(read_run_file(small_run).workspace) / "metadata.sqlite")

    def baseline_of(nodes: dict) -> str:
        return build_manifest(nodes["BaselineResolver"].folder("model") / "Format-Serving").digest

    def digest_of(version: int) -> str:
        manifest = read_version_manifest(open_destination(serving), version)
        assert manifest is not None
        return manifest.digest

    small_run.write_text(f"{small_run.read_text()}\npush_to: {serving}\n")
    run("0.001")
    run("0.002")
    good, bad = map(digest_of, list_versions(serving))
    roll_back(serving, reason="misses small cells")
    versions = list_versions(serving)
    assert digest_of(versions[-1]) == good

    nodes = run("0.002")  # unchanged
    assert baseline_of(nodes) == good
    assert nodes["Pusher"].outputs["pushed_model"].custom_properties["pushed"].int_value == 0
    assert list_versions(serving) == versions

    run_locally(read_run_file(small_run, tmp_path / "elsewhere"))  # trained again, with the same result
    assert list_versions(serving) == versions

    nodes = run("0.003")  # another model
    assert baseline_of(nodes) == good
    assert list_versions(serving)[: len(versions)] == versions
    assert digest_of(list_versions(serving)[-1]) not in (good, bad)
