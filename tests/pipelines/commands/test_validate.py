"""Test `detloom validate`."""

import json

from command_line import detloom_command, sentence


def test_validate_reports_the_failed_check(make_voc, tmp_path):
    folder = make_voc(a=["c1", "d1"])
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--splits", "train=a")
    checks = tmp_path / "checks.yaml"
    checks.write_text("examples_per_split: {threshold: 3}\n")
    result = detloom_command("validate", tmp_path / "out", "--checks", checks, "--output", tmp_path / "report")
    assert result.exit_code == 1
    assert "examples_per_split" in sentence(result)
    assert (tmp_path / "report/report.html").is_file()
    passed = detloom_command("validate", tmp_path / "out")
    assert passed.exit_code == 0
    *_, next_line = passed.output.splitlines()
    assert next_line == f"Next: detloom train efficientdet_lite0 --examples {tmp_path / 'out'} --self-test"


def test_validate_reads_checks_and_box_limit_from_a_run_file(crowded, tmp_path):
    result = detloom_command("validate", crowded, "--config", tmp_path / "run.yaml", "--output", tmp_path / "report")
    assert "crowded_images" in sentence(result)


def test_a_checks_file_overrides_the_run_file_and_json_has_all_checks(crowded, tmp_path):
    (tmp_path / "checks.yaml").write_text("examples_per_split: {threshold: 7}\n")
    options = ["--config", tmp_path / "run.yaml", "--checks", tmp_path / "checks.yaml", "--json"]
    result = detloom_command("validate", crowded, *options)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["verdict"] == "failed"
    failed = [each["check"] for each in found["checks"] if each["status"] == "failed"]
    assert "examples_per_split" in failed
    assert "crowded_images" not in failed
    assert found["report"] == str(crowded / "validation/report.html")


def test_a_missing_train_split_is_refused(crowded):
    result = detloom_command("validate", crowded, "--train-split", "b")
    assert "got the split 'b', allowed: a." in sentence(result)
