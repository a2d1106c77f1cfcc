from pathlib import Path

import pytest
import tiny_detector


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model; tests that change it copy it."""
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "export")


@pytest.fixture(scope="session")
def shapes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model with masks and keypoints."""
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("shapes") / "export", has_shapes=True)
