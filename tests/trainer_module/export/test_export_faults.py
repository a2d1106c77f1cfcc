"""Export to a full or read-only disk, with a damaged file, and with a jumping clock."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export import saved_model as export


@pytest.fixture(scope="module")
def detector(tiny_config):
    return build_detector(tiny_config.model, LabelMap.from_names(["cat", "dog"]))


@pytest.fixture
def without_signatures(monkeypatch):
    """Write no signatures, because tracing them takes most of an export."""
    monkeypatch.setattr(export.Servable, "signatures", lambda self: {})


@pytest.fixture
def without_check(monkeypatch, without_signatures):
    """Do not load the written model."""
    outputs = {
        names.BOXES: np.zeros((2, 10, 4), np.float32),
        names.SCORES: np.zeros((2, 10), np.float32),
        names.CLASSES: np.zeros((2, 10), np.float32),
        names.NUM_DETECTIONS: np.zeros(2, np.float32),
    }
    monkeypatch.setattr(export, "_check_export", lambda *_: outputs)


@pytest.mark.reliability("full disk", "export")
@pytest.mark.usefixtures("without_check")
def test_full_disk_leaves_no_model_and_the_next_export_succeeds(detector, tiny_config, tmp_path, disk):
    """The disk has room for a share of the model's bytes."""
    export.export_saved_model(detector, tiny_config, tmp_path / "model")
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file())
    for share in (0.0, 0.6):
        disk.fill(int(share * num_bytes))
        with pytest.raises((OSError, tf.errors.OpError), match="No space left on device"):
            export.export_saved_model(detector, tiny_config, disk.folder / "model")
        assert not (disk.folder / "model").exists()
        disk.empty()
    export.export_saved_model(detector, tiny_config, disk.folder / "model")
    assert (disk.folder / "model" / names.WARM_UP_FILE).is_file()


@pytest.mark.reliability("read-only", "export")
@pytest.mark.usefixtures("without_signatures")
def test_export_to_a_read_only_disk_is_an_error_that_names_the_reason(detector, tiny_config, disk):
    disk.make_read_only()
    with pytest.raises((OSError, tf.errors.OpError), match="Read-only file system"):
        export.export_saved_model(detector, tiny_config, disk.folder / "model")


@pytest.mark.reliability("torn file", "export")
@pytest.mark.usefixtures("without_signatures", "eager")
@pytest.mark.parametrize("pattern", ["saved_model.pb", "variables/*.index", "variables/*.data-*"])
def test_model_that_was_damaged_while_it_was_written_is_removed(detector, tiny_config, tmp_path, monkeypatch, pattern):
    save = tf.saved_model.save

    def save_and_truncate(servable, folder, signatures):
        save(servable, folder, signatures)
        (path,) = (tmp_path / "model").glob(pattern)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    monkeypatch.setattr(tf.saved_model, "save", save_and_truncate)
    with pytest.raises((OSError, ValueError, IndexError, RuntimeError, tf.errors.OpError)):
        export.export_saved_model(detector, tiny_config, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.reliability("clock jump", "export")
@pytest.mark.usefixtures("without_check", "jumping_clock")
def test_exported_files_do_not_depend_on_the_clock(detector, tiny_config, tmp_path):
    """The graph is left out: TensorFlow numbers its functions anew at each export."""
    files = []
    for name in ("one", "two"):
        export.export_saved_model(detector, tiny_config, tmp_path / name)
        paths = (path for path in sorted((tmp_path / name).rglob("*")) if path.is_file())
        files.append({path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in paths})
    assert "assets/" + names.ASSET_CONTRACT in files[0]
    for found in files:
        assert found.pop(names.SAVED_MODEL_FILE)
        found.pop("fingerprint.pb", None)  # of the graph
    assert files[0] == files[1]
