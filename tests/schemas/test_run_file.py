from pathlib import Path

import pytest

import detloom.pipelines
from detloom.schemas.errors import InputError
from detloom.schemas.run_file import EMBEDDED_DIGITS, read_run_file

TEXT = """
name: cats
data: {format: voc, path: photos, splits: {train: a, eval: b, test: c}}
training: {batch_size: 2, num_steps: 3, optimizer: {type: Momentum, rate: {type: ConstantRate, learning_rate: 0.1}}}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_run_file_and_the_workspace_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    run = read_run_file(write(tmp_path, TEXT))
    assert run.data.path == str(tmp_path / "photos")
    assert run.workspace == str(tmp_path.parent / "detloom_runs" / "cats")
    assert run.push_to == str(tmp_path.parent / "detloom_runs" / "cats" / "serving")


def test_the_given_workspace_is_used(tmp_path):
    assert read_run_file(write(tmp_path, TEXT), tmp_path / "ws").workspace == str(tmp_path / "ws")


def test_environment_variables_are_expanded_in_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTOS", str(tmp_path / "elsewhere"))
    run = read_run_file(write(tmp_path, TEXT.replace("path: photos", "path: '${PHOTOS}/x'")))
    assert run.data.path == str(tmp_path / "elsewhere" / "x")


def test_an_unset_variable_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.delenv("PHOTOS", raising=False)
    with pytest.raises(InputError, match=r"run\.yaml:3: data\.path: the environment variable PHOTOS is not set"):
        read_run_file(write(tmp_path, TEXT.replace("path: photos", "path: '${PHOTOS}'")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "format: voc",
            "format: vok",
            r"run\.yaml:3: data\.format: got 'vok', allowed: 'coco', 'voc'\. Did you mean 'voc'",
        ),
        ("name: cats", "name: My Cats", r"run\.yaml:2: name: got 'My Cats'|name: got 'My Cats'"),
        ("batch_size: 2", "batch_size: 0", r"run\.yaml:4: training: batch_size: got 0, allowed: 1 or more"),
        (
            "name: cats",
            "name: cats\ngates: {floors: [{metric: AP_50, min: 0.5}]}",
            r"run\.yaml:3: gates\.floors\[0\]: metric: got 'AP_50'.*Did you mean 'AP50'",
        ),
        (
            "name: cats",
            "name: cats\ngates: {floors: [{metric: AP50, min: 80}]}",
            r"run\.yaml:3: .*min of AP50: got 80\.0, allowed: 0 to 1",
        ),
        (
            "name: cats",
            "name: cats\ngates: {min_ap_change: 5}",
            r"run\.yaml:3: gates: min_ap_change: got 5\.0, allowed: -1 to 1",
        ),
        (
            "num_steps: 3, optimizer: {type: Momentum, rate: {type: ConstantRate, learning_rate: 0.1}}",
            "num_steps: 3, optimizer: {type: Momentum, rate: {type: CosineRate, learning_rate: 0.1, warmup_steps: 3}}",
            r"training: optimizer\.rate\.warmup_steps: got 3, allowed: fewer than num_steps \(3\)",
        ),
        ("test: c", "tset: c", r"data\.splits\.tset: unknown key.*Did you mean 'test'"),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read_run_file(write(tmp_path, TEXT.replace(old, new)))


def test_the_samples_are_sound(monkeypatch, tmp_path):
    monkeypatch.setenv("BCCD_DIR", str(tmp_path))
    samples = Path(detloom.pipelines.__file__).parent / "samples"
    runs = {path.stem: read_run_file(path) for path in samples.glob("*.yaml")}
    assert runs["demo"].data.path == EMBEDDED_DIGITS
    assert runs["bccd"].data.path == str(tmp_path)
