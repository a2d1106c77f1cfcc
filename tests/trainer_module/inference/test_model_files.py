import shutil

import pytest

from detloom.schemas.contracts.detections import ASSET_CONTRACT
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.model_files import find_saved_model, has_pixel_boxes, read_keypoints


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_contract_that_is_no_json_object_is_refused(model_dir, tmp_path, content):
    shutil.copytree(model_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / ASSET_CONTRACT).write_text(content)
    with pytest.raises(InputError, match=ASSET_CONTRACT):
        has_pixel_boxes(str(tmp_path / "model"))


@pytest.mark.reliability("kill", "serve")
def test_the_highest_complete_version_or_the_model_of_an_artifact_is_taken(tmp_path):
    for folder in ("9", "10", "11", ".push-12", "model/Format-Serving"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("9", "10", "model/Format-Serving"):
        (tmp_path / folder / "saved_model.pb").touch()
    assert find_saved_model(tmp_path) == tmp_path / "10"
    assert find_saved_model(tmp_path / "model") == tmp_path / "model/Format-Serving"


def test_a_folder_without_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither saved_model\.pb"):
        find_saved_model(tmp_path)
    with pytest.raises(InputError, match="nowhere: "):
        find_saved_model(tmp_path / "nowhere")


def test_keypoints_are_read_from_the_contract(shapes_dir, model_dir, tmp_path):
    assert read_keypoints(str(shapes_dir)) == ("red", ("upper left", "lower right"), (0.05, 0.1))
    assert read_keypoints(str(model_dir)) is None
    shutil.copytree(shapes_dir, tmp_path / "model")
    (tmp_path / "model" / "assets" / ASSET_CONTRACT).write_text('{"keypoints": {"names": 3}}')
    with pytest.raises(InputError, match="the keypoints in its contract cannot be read"):
        read_keypoints(str(tmp_path / "model"))
