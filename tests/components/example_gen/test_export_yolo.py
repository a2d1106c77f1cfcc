import labelled_data
import numpy as np
import pytest
import tensorflow as tf
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled_data import encode_grey_png, read_items
from labelled_data import records as records_of

from detloom.components.example_gen.export_yolo import box_cxcywh_rel, export_yolo
from detloom.components.example_gen.exported_folder import UNSOUND_BOX
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.errors import InputError


def make_record(name="images/a.png", class_ids=(7,), grey=0, **more):
    image = encode_grey_png(grey=grey)
    return labelled_data.make_record("", name, class_ids=class_ids, image=image, **more)


# 0, or from 2^-27 up: below, no centre and width in float64 restore it, and no image has a pixel that small.
coordinate = st.one_of(st.just(0.0), st.floats(2**-27, 1, width=32))


@settings(max_examples=150, deadline=None)
@given(coordinate, coordinate)
def test_centre_and_extent_read_back_to_the_same_float32(one, other):
    low, high = sorted((one, other))
    cx, cy, width, height = (float(repr(value)) for value in box_cxcywh_rel((low, low, high, high)))
    assert np.float32(cx - width / 2) == low
    assert np.float32(cx + width / 2) == high
    assert (cx, width) == (cy, height)


@settings(max_examples=80, deadline=None)
@given(st.floats(0, 2**-27, width=32), st.floats(0, 1, width=32))
def test_a_start_near_zero_moves_by_less_than_a_pixel(low, high):
    low, high = sorted((low, high))
    cx, _, width, _ = box_cxcywh_rel((low, low, high, high))
    start = cx - width / 2
    assert np.float32(start) == low or abs(start - low) < 2**-53


def test_numbers_have_as_few_decimals_as_read_back():
    # 79/640 = 0.1234375 and 101/640 = 0.1578125: dyadic, so seven and eight decimals say them exactly
    box = [float(np.float32(value)) for value in (0.25, 79 / 640, 0.5, 101 / 640)]
    assert box_cxcywh_rel(box) == [0.140625, 0.375, 0.034375, 0.25]


def test_one_example_becomes_an_image_and_a_label_file(examples, tmp_path):
    export_yolo(examples(train=[make_record()]), tmp_path / "out")
    assert (tmp_path / "out/images/train/a.png").is_file()
    # centre (0.75, 0.5), size 0.5 by 0.5; class id 7 is the second in the label map
    assert (tmp_path / "out/labels/train/a.txt").read_text() == "1 0.75 0.5 0.5 0.5\n"


def test_an_image_without_boxes_has_an_empty_label_file(examples, tmp_path):
    export_yolo(examples(train=[make_record(boxes=(), class_ids=())]), tmp_path / "out")
    assert (tmp_path / "out/labels/train/a.txt").read_text() == ""


def test_data_yaml_names_the_splits_and_the_classes(examples, tmp_path):
    export_yolo(examples(train=[make_record()], eval=[make_record()], test=[make_record()]), tmp_path / "out")
    assert yaml.safe_load((tmp_path / "out/data.yaml").read_text()) == {
        "train": "images/train",
        "val": "images/eval",
        "test": "images/test",
        "names": {0: "cat", 1: "dog: big"},
    }


def test_two_images_with_one_stem_have_separate_label_files(examples, tmp_path):
    records = [make_record("a.png", grey=1), make_record("a.jpg", grey=2, boxes=(), class_ids=())]
    export_yolo(examples(train=records), tmp_path / "out")
    labels = {path.name: path.read_text() for path in (tmp_path / "out/labels/train").iterdir()}
    assert labels == {"a.txt": "1 0.75 0.5 0.5 0.5\n", "a-2.txt": ""}
    assert sorted(path.name for path in (tmp_path / "out/images/train").iterdir()) == ["a-2.png", "a.png"]


def test_one_image_with_different_labels_is_written_twice(examples, tmp_path):
    records = [make_record("a.png"), make_record("a.png", boxes=(), class_ids=())]
    export_yolo(examples(train=records), tmp_path / "out")
    assert len(list((tmp_path / "out/images/train").iterdir())) == 2


def test_a_class_id_outside_the_label_map_is_an_error(examples, tmp_path):
    with pytest.raises(InputError, match="class id 4 "):
        export_yolo(examples(train=[make_record(class_ids=(4,))]), tmp_path / "out")


def test_crowds_and_groups_are_left_out_and_counted(examples, tmp_path):
    record = make_record(
        boxes=((0.0, 0.0, 1.0, 1.0),) * 3,
        class_ids=(3, 3, 3),
        IS_CROWD=[1, 0, 0],
        GROUP_OF=[0, 1, 0],
        DIFFICULT=[0, 0, 1],
    )
    counts = export_yolo(examples(train=[record]), tmp_path / "out")
    assert counts.num_objects == {"train": 1}
    assert counts.lost == {
        "is_crowd (box left out)": 1,
        "group_of (box left out)": 1,
        "difficult": 1,
        "class id (renumbered)": 2,  # 3 and 7, which read back as 1 and 2
    }


@pytest.mark.parametrize("split", ["images", "Labels", "a.txt"])
def test_a_split_whose_name_has_a_meaning_for_readers_is_refused(split, examples, tmp_path):
    with pytest.raises(InputError, match=f"split '{split}'"):
        export_yolo(examples(**{split: [make_record()]}), tmp_path / "out")


def test_the_exported_data_set_reads_back_equal(examples, tmp_path):
    names = ["x/images/a.png", "images/images/b.png", "a.png", "a.txt/b.png", "x/labels/a.png"]
    records = [make_record(name, grey=number) for number, name in enumerate(names)]
    export_yolo(examples(train=records), tmp_path / "out")
    found = records_of(read_items("yolo", tmp_path / "out", "train"))
    assert [(item.record_key, len(item.objects)) for item in found] == [
        ("a", 1),
        ("a.txt_b", 1),
        ("images_b", 1),
        ("x_images_a", 1),
        ("x_labels_a", 1),
    ]


def test_an_empty_split_is_left_out_and_named(examples, tmp_path):
    counts = export_yolo(examples(train=[make_record()], eval=[]), tmp_path / "out")
    assert counts.empty_splits == ("eval",)
    assert "val" not in yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert not (tmp_path / "out/images/eval").exists()


@pytest.mark.parametrize(
    "box", [(0.5, 0.5, 0.1, 0.1), (-0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 2.0, 1.0), (0.1, 0.2, 0.1, 1.0)]
)
def test_an_unsound_box_is_left_out_and_counted(box, examples, tmp_path):
    counts = export_yolo(examples(train=[make_record(boxes=[box])]), tmp_path / "out")
    assert (tmp_path / "out/labels/train/a.txt").read_text() == ""
    assert counts.lost[UNSOUND_BOX] == 1


def test_masks_keypoints_and_other_features_are_counted(examples, tmp_path):
    example = tf.train.Example.FromString(make_record())
    example.features.feature[keys.MASK].bytes_list.value.append(b"png")
    example.features.feature[keys.NUM_KEYPOINTS].int64_list.value.append(3)
    example.features.feature["image/context/weather"].bytes_list.value.append(b"rain")
    counts = export_yolo(examples(train=[example.SerializeToString()]), tmp_path / "out")
    expected = {"mask": 1, "keypoints": 1, "other features": 1, "class id (renumbered)": 2}
    assert counts.lost == expected
