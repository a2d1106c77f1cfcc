"""Test `detloom inspect`."""

from command_line import detloom_command


def test_inspect_writes_a_page(make_voc, tmp_path):
    folder = make_voc(a=["c1", "d1"])
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--splits", "train=a")
    result = detloom_command("inspect", tmp_path / "out", "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "dog" in (tmp_path / "page.html").read_text()


def test_inspect_shows_augmented_images(make_voc, tmp_path):
    folder, run_file = make_voc(a=["c1", "d1"]), tmp_path / "run.yaml"
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--splits", "train=a")
    run_file.write_text(
        "name: test\ndata: {format: voc, path: ., splits: {train: a, eval: b, test: c}}\n"
        "detector: ssd_mobilenet_v2_fpnlite_320x320\n"
        "train: {augmentations: [{type: RandomVerticalFlip}]}\n"
    )
    result = detloom_command("inspect", tmp_path / "out", "--augment", run_file, "--versions", 1)
    assert result.exit_code == 0, result.output
    assert result.output == f"Wrote {tmp_path / 'out/augment.html'}\n"
    text = (tmp_path / "out/augment.html").read_text("utf-8")
    assert "RandomVerticalFlip" in text
    assert text.count("data:image/jpeg;base64,") == 4  # two images, each stored and one version
