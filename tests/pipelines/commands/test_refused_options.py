"""Options that do not fit each other, a path or the configuration: refused by name, before anything is written."""

import pytest
from command_line import detloom_command, sentence

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"
RUN = """
name: cells
data: {path: "embedded:digits", split_by_ratio: {}}
train: {batch_size: 4, num_steps: 8}
push_to: gs://models/cells
kubeflow: {host: "http://127.0.0.1:1", image: "x/d:1"}
"""
REFUSED = [
    ("export --out out", "--checkpoint"),
    ("export there --checkpoint ckpt-0 --out out", "--checkpoint"),
    ("export there --out there", "there: already exists"),
    ("export there --out out", "there: has neither"),
    ("export there --out out --tflite int8", "--examples"),
    ("init", "FOLDER"),
    ("init there --from-odapi a.config", "FOLDER"),
    ("init --from-odapi a.config --budget 5m", "--budget"),
    ("init there --records there", "--records"),
    ("init there --checkpoint x", "--checkpoint"),
    ("init nowhere --name Bad", "name: got 'Bad'"),
    ("init there -o out.yaml", "there: "),
    ("predict there --model there --ground-truth x.json", "--json"),
    (f"restore-report --config {PRESET}", "--checkpoint"),
    (f"restore-report --config {PRESET} --checkpoint x", "--num-classes"),
    ("run run.yaml --budget 5m", "--budget"),
    (f"schedule create run.yaml --name {'x' * 129}", "--name"),
    ("schedule create run.yaml", "run.yaml: the section schedule"),
    ("status run.yaml --wait", "RUN_ID"),
    ("status run.yaml --runner vertex", "vertex: "),
    ("submit run.yaml --name Cells", "--name: got 'Cells'"),
    ("submit run.yaml --job no.yaml", "no.yaml: "),
    (f"train {PRESET} --out out", "--examples"),
]
WRONG_USE = [
    ("inspect there --images 0", "--images"),
    ("predict there --model there --min-score nan", "--min-score"),
    ("restore-report --checkpoint x", "--config"),
    (f"train {PRESET} --examples there", "--out"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run in a folder with `run.yaml` and an empty folder `there`; check that nothing is added."""
    (tmp_path / "there").mkdir()
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    yield
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["run.yaml", "there"]


@pytest.mark.parametrize(("words", "named"), REFUSED)
def test_a_mistake_is_named_in_one_sentence(words, named):
    assert named in sentence(detloom_command(*words.split()))


@pytest.mark.parametrize(("words", "named"), WRONG_USE)
def test_wrong_use_exits_with_2_and_names_the_option(words, named):
    result = detloom_command(*words.split())
    assert result.exit_code == 2
    assert named in result.output
