import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled_data import encode_grey_png, make_record
from PIL import Image

from detloom.components.example_gen.export_coco import box_xywh_px, export_coco
from detloom.components.example_gen.exported_folder import UNSOUND_BOX
from detloom.schemas.errors import InputError


def exported(examples: Path, tmp_path: Path, split: str = "train") -> dict:
    export_coco(examples, tmp_path / "out")
    return json.loads((tmp_path / "out/annotations" / f"{split}.json").read_text())


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 8000))
def test_whole_pixels_stay_whole(data, side):
    xmin = data.draw(st.integers(0, side - 1))
    xmax = data.draw(st.integers(xmin + 1, side))
    box = [np.float32(xmin / side), np.float32(xmin / side), np.float32(xmax / side), np.float32(xmax / side)]
    got = box_xywh_px([float(value) for value in box], (side, side))
    assert got == [xmin, xmin, xmax - xmin, xmax - xmin]


def test_pixels_are_rounded_to_a_thousandth():
    # 1/3 of 100 and 200 px, 2/3 of 100 and 200 px
    assert box_xywh_px((1 / 3, 1 / 3, 2 / 3, 2 / 3), (100, 200)) == [66.667, 33.333, 66.666, 33.334]


def test_one_example_becomes_one_image_and_its_annotation(examples, tmp_path):
    folder = examples(train=[make_record("17", AREA=[200.5], IS_CROWD=[1])])
    got = exported(folder, tmp_path)
    assert got["images"] == [{"id": 17, "file_name": "a.png", "height": 40, "width": 60, "source_id": "17"}]
    # ymin 0.25 of 40 px, xmin 0.5 of 60 px, half of each side
    assert got["annotations"] == [
        {"id": 1, "image_id": 17, "category_id": 3, "bbox": [30, 10, 30, 20], "area": 200.5, "iscrowd": 1}
    ]
    assert [(item["id"], item["name"]) for item in got["categories"]] == [(3, "cat"), (7, "dog: big")]


def test_image_bytes_are_unchanged(examples, tmp_path):
    image = encode_grey_png(grey=77) + b"trailing"
    exported(examples(train=[make_record(image=image)]), tmp_path)
    assert (tmp_path / "out/images/a.png").read_bytes() == image


@pytest.mark.parametrize("ids", [["1", "BloodImage_2"], ["5", "5"], ["001", "2"], ["1", "-2"], ["1", "9" * 30]])
def test_ids_that_are_not_unique_whole_numbers_are_renumbered(ids, examples, tmp_path):
    records = [make_record(key, f"{number}.png", image=encode_grey_png(grey=number)) for number, key in enumerate(ids)]
    got = exported(examples(train=records), tmp_path)
    assert [image["id"] for image in got["images"]] == [1, 2]
    assert [image["source_id"] for image in got["images"]] == ids


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../etc/passwd.png", "etc/passwd.png"),
        ("/etc/cron.d/x.png", "etc/cron.d/x.png"),
        ("..\\..\\x.png", "x.png"),
        ("a\0b.png", "a_b.png"),
        (".hidden.png", "hidden.png"),
        ("JPEGImages/x.jpg", "x.png"),  # the content is a PNG
        ("cam1/scan.v2", "cam1/scan.v2.png"),
        ("C:\\x.png", "C_/x.png"),
        ("", "7.png"),
        ("é" * 300 + ".png", "é" * 98 + ".png"),  # 98 x 2 bytes and 4 are 200
    ],
)
def test_file_names_are_made_safe(name, expected, examples, tmp_path):
    got = exported(examples(train=[make_record("7", name)]), tmp_path)
    assert got["images"][0]["file_name"] == expected
    assert (tmp_path / "out/images" / expected).is_file()


def test_different_images_with_one_name_are_both_kept(examples, tmp_path):
    records = [make_record(str(grey), "a.png", image=encode_grey_png(grey=grey)) for grey in (1, 2)]
    got = exported(examples(train=records[:1], test=records), tmp_path, "test")
    assert [image["file_name"] for image in got["images"]] == ["a.png", "a-2.png"]
    assert sorted(path.name for path in (tmp_path / "out/images").iterdir()) == ["a-2.png", "a.png"]


def test_an_image_with_the_name_of_another_images_folder_is_kept(examples, tmp_path):
    records = [make_record("1", "a.png"), make_record("2", "a.png/b.png", image=encode_grey_png(grey=3))]
    got = exported(examples(train=records), tmp_path)
    assert [image["file_name"] for image in got["images"]] == ["a.png", "a.png_b.png"]


def test_masks_become_run_lengths(examples, tmp_path):
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 30:60] = 1
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, format="PNG")
    got = exported(examples(train=[make_record(MASK=[buffer.getvalue()])]), tmp_path)
    from pycocotools import mask as coco_mask

    np.testing.assert_array_equal(coco_mask.decode(got["annotations"][0]["segmentation"]), mask)


def test_keypoints_become_pixels(examples, tmp_path):
    record = make_record(
        boxes=((0.0, 0.0, 1.0, 1.0),) * 2,
        class_ids=(3, 7),
        NUM_KEYPOINTS=[2, 0],
        KEYPOINT_X=[0.5, 0.0],
        KEYPOINT_Y=[0.25, 0.0],
        KEYPOINT_VISIBILITY=[2, 0],
    )
    got = exported(examples(train=[record]), tmp_path)
    assert got["annotations"][0]["keypoints"] == [30, 10, 2, 0, 0, 0]
    assert got["annotations"][0]["num_keypoints"] == 1
    assert "keypoints" not in got["annotations"][1]
    assert got["categories"][0]["keypoints"] == ["keypoint_1", "keypoint_2"]


def test_flags_that_coco_cannot_store_are_counted(examples, tmp_path):
    record = make_record(DIFFICULT=[1], TRUNCATED=[1], GROUP_OF=[0])
    counts = export_coco(examples(train=[record]), tmp_path / "out")
    assert counts.lost == {"difficult": 1, "truncated": 1}


def test_an_output_that_is_not_empty_is_an_error(examples, tmp_path):
    folder = examples(train=[make_record()])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("keep")
    with pytest.raises(InputError, match="empty"):
        export_coco(folder, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_damaged_shard_leaves_no_output(examples, tmp_path):
    folder = examples(train=[make_record(), make_record("2", "b.png", image=encode_grey_png(grey=9))])
    shard = folder / "Split-train/data_tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"data_tfrecord.* 1 example"):
        export_coco(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["examples"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([make_record(boxes=[(float("nan"), 0.0, 1.0, 1.0)])], "example 0: .*finite"),
        ([make_record(), make_record(boxes=[(0.0, 0.0, float("inf"), 1.0)])], "example 1: .*finite"),
        ([make_record(class_ids=(9,))], "class id 9 "),
        ([make_record(MASK=[encode_grey_png((41, 60))])], "mask .*size of the image"),
        ([], r"\(train\)"),
    ],
)
def test_examples_that_cannot_be_exported_are_an_error_and_leave_no_output(records, message, examples, tmp_path):
    with pytest.raises(InputError, match=message):
        export_coco(examples(train=records), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unsound_boxes_are_left_out_and_counted(examples, tmp_path):
    boxes = ((0.5, 0.5, 0.1, 0.1), (-0.5, 0.0, 2.0, 2.0), (0.25, 0.5, 0.75, 1.0), (0.5, 0.5, 0.5, 1.0))
    counts = export_coco(examples(train=[make_record(boxes=boxes, class_ids=(3,) * 4)]), tmp_path / "out")
    got = json.loads((tmp_path / "out/annotations/train.json").read_text())
    assert [annotation["bbox"] for annotation in got["annotations"]] == [[30, 10, 30, 20]]
    assert counts.lost == {UNSOUND_BOX: 3}


def test_an_area_that_is_not_finite_is_replaced_by_the_box_area(examples, tmp_path):
    counts = export_coco(examples(train=[make_record(AREA=[float("inf")])]), tmp_path / "out")
    got = json.loads((tmp_path / "out/annotations/train.json").read_text())
    assert got["annotations"][0]["area"] == 600  # 20 x 30 px
    assert list(counts.changed.values()) == [1]


def test_other_features_are_counted(examples, tmp_path):
    example = tf.train.Example.FromString(make_record())
    example.features.feature["image/context/weather"].bytes_list.value.append(b"rain")
    example.features.feature["image/context/nothing"].bytes_list.SetInParent()
    counts = export_coco(examples(train=[example.SerializeToString()]), tmp_path / "out")
    assert counts.lost == {"other features": 1}


@pytest.mark.parametrize(("ids", "expected"), [(("4", "9"), [4, 9]), (("4", "4"), [1, 2]), (("4", "x"), [1, 2])])
def test_ids_are_unique_over_all_splits(ids, expected, examples, tmp_path):
    export_coco(examples(eval=[make_record(ids[0])], train=[make_record(ids[1], "b.png")]), tmp_path / "out")
    files = [json.loads((tmp_path / f"out/annotations/{split}.json").read_text()) for split in ("eval", "train")]
    assert [file["images"][0]["id"] for file in files] == expected
    assert [file["annotations"][0]["image_id"] for file in files] == expected
    assert [file["annotations"][0]["id"] for file in files] == [1, 2]


def test_an_empty_split_is_left_out_and_named(examples, tmp_path):
    counts = export_coco(examples(train=[make_record()], eval=[]), tmp_path / "out")
    assert counts.empty_splits == ("eval",)
    assert [path.name for path in (tmp_path / "out/annotations").iterdir()] == ["train.json"]


def test_missing_shards_are_counted(examples, tmp_path):
    folder = examples(train=[make_record()])
    shard = folder / "Split-train/data_tfrecord-00000-of-00001"
    shard.rename(shard.with_name("data_tfrecord-00002-of-00005"))
    with pytest.raises(InputError, match="Split-train: 4 of 5 shards"):
        export_coco(folder, tmp_path / "out")


def test_an_orientation_is_neutralised_and_counted(examples, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40)).save(buffer, format="JPEG", exif=exif)
    record = make_record("1", "a.jpg", image=buffer.getvalue(), image_format=b"jpeg")
    counts = export_coco(examples(train=[record, make_record("2")]), tmp_path / "out")
    with Image.open(tmp_path / "out/images/a.jpg") as image:
        assert 0x0112 not in image.getexif()
    assert counts.changed == {"exif_neutralised": 1}


def test_a_link_to_an_empty_folder_is_filled(examples, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    export_coco(examples(train=[make_record()]), tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "real/annotations/train.json").is_file()


def test_the_working_directory_as_output_is_an_error(examples, tmp_path, monkeypatch):
    folder = examples(train=[make_record()])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="working directory"):
        export_coco(folder, Path())
    assert os.listdir(tmp_path / "here") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["examples", "here"]
