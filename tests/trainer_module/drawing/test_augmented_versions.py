import numpy as np
import pytest

from detloom.schemas.contracts.ground_truth import KEYPOINTS, MASKS, TRAINING_COLUMNS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.augmentations import MixUp, RandomHorizontalFlip
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.one_stage.family import SsdFamily
from detloom.trainer_module.drawing.augmented_versions import draw_records
from detloom.trainer_module.drawing.draw import color_of_class

LABEL_MAP = LabelMap(((1, "a"), (7, "b")))
LEFT = (0.25, 0.1, 0.75, 0.3)


@pytest.fixture(scope="module")
def config(tiny_config, changed):
    return changed(tiny_config, {"train.augmentations": (RandomHorizontalFlip(probability=1.0),)})


def has_color(image, class_id):
    return bool((image == color_of_class(class_id)).all(axis=-1).any())


def test_a_record_is_drawn_as_stored_and_flipped(config, make_example):
    (drawn,) = draw_records(config, LABEL_MAP, [make_example([LEFT], [7], image_hw=(48, 96))], 2)
    assert (drawn.image_hw, drawn.num_boxes, drawn.error) == ((48, 96), 1, "")
    assert drawn.stored.shape == (120, 240, 3)  # 48 x 96 times 2.5
    assert [version.shape for version in drawn.versions] == [(240, 240, 3)] * 2  # the network's 64 x 64 times 3.75
    assert has_color(drawn.stored[:, :120], 7)
    assert not has_color(drawn.stored[:, 120:], 7)
    assert has_color(drawn.versions[0][:, 120:], 7)
    assert not has_color(drawn.versions[0][:, :120], 7)


def test_masks_and_keypoints_are_drawn_and_transformed_if_the_detector_is_trained_on_them(
    config, make_example, monkeypatch
):
    mask = np.zeros((64, 64), np.uint8)
    mask[16:48, 8:16] = 255
    plain = make_example([LEFT], [1])
    record = make_example([LEFT], [1], masks=[mask], keypoints=[[(0.5, 0.9, 2)]])
    (without,) = draw_records(config, LABEL_MAP, [record], 1)
    assert (without.stored == draw_records(config, LABEL_MAP, [plain], 1)[0].stored).all()
    columns = (*TRAINING_COLUMNS, MASKS, KEYPOINTS)
    monkeypatch.setattr(SsdFamily, "ground_truth_columns", columns)
    monkeypatch.setattr(SsdFamily, "keypoints", Keypoints("a", ("nose",), (0.1,)))
    (drawn,) = draw_records(config, LABEL_MAP, [record], 1)
    # The mask lies inside the box, on the left, and on the right after the flip; the keypoint the other way round.
    for before, after, side in (
        (without.stored, drawn.stored, slice(0, 120)),
        (without.versions[0], drawn.versions[0], slice(120, 240)),
    ):
        changed_pixels = (before != after).any(axis=-1)
        assert changed_pixels[:, side].sum() > 1_000  # 32 x 8 pixels times 3.75 squared are 3,600
        assert 0 < np.delete(changed_pixels, np.r_[side], axis=1).sum() < 100  # a dot
    (missing,) = draw_records(config, LABEL_MAP, [plain], 1)
    assert "training cannot read it" in missing.error


def test_mixed_images_are_mixed_with_each_other(config, changed, make_example):
    mixing = changed(config, {"train.augmentations": (MixUp(probability=1.0),)})
    records = [make_example([LEFT], [7], name="x"), make_example([(0.0, 0.0, 0.5, 0.5)], [1], name="y")]
    drawn = draw_records(mixing, LABEL_MAP, records, 1)
    assert all(has_color(record.versions[0], 1) and has_color(record.versions[0], 7) for record in drawn)


def test_an_unreadable_record_has_an_error_and_the_others_are_drawn(config, make_example):
    unknown = make_example([LEFT], [3], name="strange")
    drawn = draw_records(config, LABEL_MAP, [unknown, make_example([LEFT], [1])], 1)
    assert "training cannot read it" in drawn[0].error
    assert "strange" in drawn[0].error
    assert drawn[0].versions == ()
    assert len(drawn[1].versions) == 1


def test_images_without_a_box_and_no_images(config, make_example):
    (drawn,) = draw_records(config, LABEL_MAP, [make_example([])], 2)
    assert (drawn.num_boxes, len(drawn.versions)) == (0, 2)
    assert draw_records(config, LABEL_MAP, [], 2) == []
