"""Validation that is killed, on a full or read-only disk, with a jumping clock, and twice at the same time."""

import pytest
from faults import read_visible, stop_at_every_step

from detloom.components.dataset_validator.report.validation_page import write_report
from detloom.components.dataset_validator.validate import LOCK_FILE, validate_examples
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError

BOX = (0.1, 0.1, 0.6, 0.6)


@pytest.fixture
def examples(tmp_path, make_example, write_records):
    for split, widths in (("train", (64, 65, 66)), ("eval", (67, 68))):  # other sizes, so that no images are equal
        records = [make_example([BOX], [1], (64, width), f"{split}_{width}") for width in widths]
        write_records(tmp_path / f"examples/Split-{split}/data_tfrecord-00000-of-00001", records)
    write_label_map(tmp_path / "examples" / LABEL_MAP_FILE, LabelMap.from_names(["cat"]))
    return tmp_path / "examples"


@pytest.mark.slow  # forks of a process that has loaded TensorFlow
@pytest.mark.reliability("kill", "validate")
def test_killed_validation_leaves_complete_files_and_the_page_last(examples, tmp_path):
    report = validate_examples(examples, tmp_path / "whole")
    expected, out = read_visible(tmp_path / "whole"), tmp_path / "out"
    num_kills = 0
    for num_kills in stop_at_every_step(out, lambda: write_report(out, report, {})):
        found = read_visible(out)
        assert found.items() <= expected.items(), num_kills
        assert found.keys() != {"report.html"}, num_kills
    assert num_kills >= 8  # far fewer would mean that the operations are not observed
    validate_examples(examples, out)
    assert read_visible(out) == expected


@pytest.mark.reliability("full disk", "validate")
@pytest.mark.parametrize("free_bytes", [0, 8192])
def test_full_disk_leaves_no_report_and_the_next_validation_succeeds(examples, tmp_path, disk, free_bytes):
    report = validate_examples(examples, tmp_path / "whole")
    disk.fill(free_bytes)
    with pytest.raises((OSError, InputError), match="No space left on device"):
        validate_examples(examples, disk.folder / "out")
    assert not list(disk.folder.glob("out/report.*"))
    disk.empty()
    assert validate_examples(examples, disk.folder / "out") == report


@pytest.mark.reliability("read-only", "validate")
def test_read_only_output_is_refused_and_the_earlier_report_kept(examples, disk):
    validate_examples(examples, disk.folder)
    before = read_visible(disk.folder)
    disk.make_read_only()
    with pytest.raises(InputError, match="Read-only file system"):
        validate_examples(examples, disk.folder)
    assert read_visible(disk.folder) == before


@pytest.mark.reliability("lost lease", "validate")
def test_validation_that_lost_its_lock_writes_no_report(examples, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def lose(*arguments, **options):
        (out / LOCK_FILE).unlink()
        with hold_output(str(out), LOCK_FILE, "validation"):
            return {}

    monkeypatch.setattr("detloom.components.dataset_validator.validate.draw_images", lose)
    with pytest.raises(OSError, match=r"\.validate\.lock"):
        validate_examples(examples, out)
    assert not list(out.glob("report.*"))


@pytest.mark.reliability("clock jump", "validate")
@pytest.mark.usefixtures("jumping_clock")
def test_report_does_not_depend_on_the_clock(examples, tmp_path):
    for name in ("one", "two"):
        validate_examples(examples, tmp_path / name)
    assert read_visible(tmp_path / "one") == read_visible(tmp_path / "two")


@pytest.mark.reliability("concurrent runs", "validate")
def test_second_validation_into_the_same_folder_is_refused_with_the_owner(examples, tmp_path):
    with hold_output(str(tmp_path / "out"), LOCK_FILE, "validation"):
        with pytest.raises(FolderBusyError, match=r"/out: another validation .*process "):
            validate_examples(examples, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK_FILE]
    assert validate_examples(examples, tmp_path / "out")["verdict"] == "passed"
