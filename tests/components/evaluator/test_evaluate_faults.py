"""A report whose writer is killed, on a full disk, with a jumping clock."""

import evaluations
import pytest
import tensorflow as tf
from faults import read_visible, stop_at_every_step

from detloom.components.evaluator.report import output_files as report
from detloom.components.evaluator.report.output_files import PAGE_FILE, write_report


@pytest.mark.slow  # some forty forks of a process that has loaded TensorFlow
@pytest.mark.reliability("kill", "evaluate")
def test_killed_evaluation_leaves_complete_files_and_the_page_last(evaluation, tmp_path, monkeypatch):
    """TensorBoard's files and the table are left out, because libraries with threads of their own write them."""
    monkeypatch.setattr(report, "_write_tensorboard", lambda folder, evaluation: None)
    monkeypatch.setattr(report, "_write_table", lambda file, results, evaluation: file.write(b"table"))
    out, num_kills = tmp_path / "out", 0
    for name in ("out", "whole"):
        (tmp_path / name).mkdir()
    write_report(str(tmp_path / "whole"), evaluation, [])
    expected = read_visible(tmp_path / "whole")
    for num_kills in stop_at_every_step(out, lambda: write_report(str(out), evaluation, [])):
        found = read_visible(out)
        assert found.items() <= expected.items(), num_kills
        assert PAGE_FILE not in found or found == expected, num_kills
    assert num_kills > 20  # far fewer would mean that the operations are not observed
    write_report(str(out), evaluation, [])
    assert read_visible(out) == expected


@pytest.mark.reliability("full disk", "evaluate")
@pytest.mark.parametrize("free_bytes", [0, 40_960])
def test_full_disk_leaves_no_page(evaluation, disk, free_bytes):
    out = disk.folder
    write_report(str(out), evaluation, [])
    disk.fill(free_bytes)
    with pytest.raises((OSError, tf.errors.ResourceExhaustedError), match="No space left on device"):
        write_report(str(out), evaluation, [evaluations.make_image(size=1 << 20)])
    assert not (out / PAGE_FILE).exists()
    disk.empty()
    write_report(str(out), evaluation, [])
    assert (out / PAGE_FILE).exists()


@pytest.mark.reliability("clock jump", "evaluate")
@pytest.mark.usefixtures("jumping_clock")
def test_report_does_not_depend_on_the_clock(evaluation, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report(str(tmp_path / name), evaluation, [])
    one, two = (read_visible(tmp_path / name) for name in ("one", "two"))
    in_folders = {name for name in one | two if "/" in name}  # TensorBoard's events contain the time
    assert {name: one[name] for name in one.keys() - in_folders} == {
        name: two[name] for name in two.keys() - in_folders
    }
