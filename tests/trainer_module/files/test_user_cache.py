from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.files.user_cache import user_cache


def test_the_cache_is_in_xdg_cache_home_or_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache("flink") == tmp_path / "detloom/flink"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert user_cache("flink") == Path("/home/me/.cache/detloom/flink")


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")  # as "~" of a user without an entry
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        user_cache("flink")
