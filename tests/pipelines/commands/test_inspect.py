"""Test `detloom inspect`."""

import shutil

from command_line import detloom_command


def test_inspect_writes_a_page(crowded, tmp_path):
    result = detloom_command("inspect", crowded, "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "cat" in (tmp_path / "page.html").read_text()


def test_inspect_shows_augmented_images(crowded, tmp_path, monkeypatch):
    artifact = tmp_path / "DetectionExampleGen/examples/22"
    shutil.copytree(crowded, artifact)
    monkeypatch.chdir(tmp_path)
    run_file = tmp_path / "augmented.yaml"
    run_file.write_text(
        "name: test\ndata: {format: voc, path: ., splits: {train: a, eval: b, test: c}}\n"
        "detector: ssd_mobilenet_v2_fpnlite_320x320\n"
        "train: {augmentations: [{type: RandomVerticalFlip}]}\n"
    )
    result = detloom_command("inspect", artifact, "--augment", run_file, "--versions", 1)
    assert result.exit_code == 0, result.output
    assert result.output == "Wrote augment.html\n"
    text = (tmp_path / "augment.html").read_text("utf-8")
    assert "<h1>DetectionExampleGen/examples/22</h1>" in text
    assert "RandomVerticalFlip" in text
    assert text.count("data:image/jpeg;base64,") == 2  # an image as it is stored, and one version
