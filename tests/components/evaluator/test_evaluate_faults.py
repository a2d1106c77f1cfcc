"""Evaluation that is killed, with damaged shards, a full or read-only disk, a lost lock and a jumping clock."""

import apache_beam as beam
import evaluations
import pytest
import tensorflow as tf
from faults import kill_at_every_step

from detloom.components.evaluator import evaluate_exported as module
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.report import output_files as report
from detloom.components.evaluator.report.output_files import LOCK_FILE, PAGE_FILE, write_report
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate
from detloom.trainer_module.files.folder_lock import FolderBusyError

QUICK = Gates(baseline=BaselineGate(num_resamples=100), latency=LatencyGate(num_images=1))


@pytest.fixture
def run(tmp_path, write_split, five_examples, good_model_uri):
    """Return a function that evaluates the model without errors on five images."""
    write_split(tmp_path / "examples", five_examples)

    def call(out):
        inputs = EvaluationInputs(
            candidate_dir=str(good_model_uri / "Format-Serving"),
            baseline_dir=None,
            examples_uris=[str(tmp_path / "examples")],
            shard_patterns=[str(tmp_path / "examples/Split-test/*")],
        )
        params = EvaluatorParams(gates=QUICK, settings=EvaluatorSettings(num_images=0, batch_size=2))
        return evaluate(inputs, params, lambda: beam.Pipeline(runner="DirectRunner"), str(out))

    return call


def read_visible(folder):
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow  # some forty forks of a process that has loaded TensorFlow
@pytest.mark.reliability("kill", "evaluate")
def test_killed_evaluation_leaves_complete_files_and_the_page_last(tmp_path, monkeypatch):
    """TensorBoard's files and the table are left out, because libraries with threads of their own write them."""
    monkeypatch.setattr(report, "_write_tensorboard", lambda folder, evaluation: None)
    monkeypatch.setattr(report, "_write_table", lambda file, results, evaluation: file.write(b"table"))
    evaluation, out, num_kills = evaluations.make_evaluation(), tmp_path / "out", 0
    for name in ("out", "whole"):
        (tmp_path / name).mkdir()
    write_report(str(tmp_path / "whole"), evaluation, [])
    expected = read_visible(tmp_path / "whole")
    for num_kills in kill_at_every_step(out, lambda: write_report(str(out), evaluation, [])):
        found = read_visible(out)
        assert found.items() <= expected.items(), num_kills
        assert PAGE_FILE not in found or found == expected, num_kills
    assert num_kills > 20  # far fewer would mean that the operations are not observed
    write_report(str(out), evaluation, [])
    assert read_visible(out) == expected


@pytest.mark.reliability("torn file", "evaluate")
@pytest.mark.parametrize("damage", ["truncated", "one byte changed"])
def test_damaged_shard_is_named_and_ends_the_evaluation_without_a_page(run, tmp_path, damage):
    shard = max((tmp_path / "examples/Split-test").iterdir())
    content = shard.read_bytes()
    changed = content[:-9] + bytes([content[-9] ^ 0xFF]) + content[-8:]
    shard.write_bytes(content[:-5] if damage == "truncated" else changed)
    with pytest.raises(InputError, match=f"{shard.name}: ") as caught:
        run(tmp_path / "out")
    assert len(str(caught.value)) < 300
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.reliability("full disk", "evaluate")
@pytest.mark.parametrize("free_bytes", [0, 40_960])
def test_full_disk_leaves_no_page(disk, free_bytes):
    evaluation, out = evaluations.make_evaluation(), disk.folder
    write_report(str(out), evaluation, [])
    disk.fill(free_bytes)
    with pytest.raises((OSError, tf.errors.ResourceExhaustedError), match="No space left on device"):
        write_report(str(out), evaluation, [evaluations.make_image(size=1 << 20)])
    assert not (out / PAGE_FILE).exists()
    disk.empty()
    write_report(str(out), evaluation, [])
    assert (out / PAGE_FILE).exists()


@pytest.mark.reliability("read-only", "evaluate")
def test_read_only_output_is_refused_and_the_earlier_report_kept(run, disk):
    write_report(str(disk.folder), evaluations.make_evaluation(), [])
    before = read_visible(disk.folder)
    disk.make_read_only()
    with pytest.raises(InputError, match="Read-only file system"):
        run(disk.folder)
    assert read_visible(disk.folder) == before


@pytest.mark.reliability("lost lease", "evaluate")
def test_evaluation_that_lost_its_lock_writes_no_report(run, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def lose(*_):
        (out / LOCK_FILE).unlink()
        with hold_output(str(out), LOCK_FILE, "evaluation"):
            return []

    monkeypatch.setattr(module, "_draw_images", lose)
    with pytest.raises(OSError, match=r"\.evaluate\.lock"):
        run(out)
    assert list(out.iterdir()) == []


@pytest.mark.reliability("concurrent runs", "evaluate")
def test_second_evaluation_into_the_same_folder_is_refused_and_the_first_continues(run, tmp_path, monkeypatch):
    """Without a lock, the second would delete the records of the first, which would then read those of the second."""
    run_inference = module.run_inference

    def run_second(*arguments, **options):
        monkeypatch.setattr(module, "run_inference", run_inference)
        with pytest.raises(FolderBusyError, match=r"/out: another evaluation .*process "):
            run(tmp_path / "out")
        return run_inference(*arguments, **options)

    monkeypatch.setattr(module, "run_inference", run_second)
    evaluation = run(tmp_path / "out")
    assert evaluation.candidate.coco.value_of("AP") == pytest.approx(1.0)


@pytest.mark.reliability("clock jump", "evaluate")
@pytest.mark.usefixtures("jumping_clock")
def test_report_does_not_depend_on_the_clock(tmp_path):
    evaluation = evaluations.make_evaluation()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report(str(tmp_path / name), evaluation, [])
    assert read_visible(tmp_path / "one") == read_visible(tmp_path / "two")
