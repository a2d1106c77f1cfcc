from dataclasses import replace
from types import SimpleNamespace

import pytest

from detloom.pipelines import check_learned_columns as checks
from detloom.schemas.errors import InputError
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.run_file.read_run_file import read_run_file


def test_a_detector_that_learns_masks_needs_data_with_masks(small_run, monkeypatch):
    run = read_run_file(small_run)
    checks.check_learned_columns(run)
    family = SimpleNamespace(ground_truth_columns=("masks_GHW", "keypoints_yx_rel_GP2"))
    monkeypatch.setattr(checks, "family_of", lambda model: family)
    with pytest.raises(InputError, match=r"data\.masks: got false, allowed: true"):
        checks.check_learned_columns(run)
    run = replace(run, data=replace(run.data, masks=True))
    with pytest.raises(InputError, match=r"data\.keypoints: got false, allowed: true"):
        checks.check_learned_columns(run)
    run = replace(run, data=replace(run.data, keypoints=True))
    checks.check_learned_columns(run)
    with pytest.raises(InputError, match=r"export\.tflite: got \['float16'\], allowed: \[\].*no masks"):
        checks.check_learned_columns(replace(run, export=Export(tflite=("float16",))))
