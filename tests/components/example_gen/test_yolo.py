"""YOLO: records read, records quarantined, and errors that refuse the whole source."""

import math

import pytest
from labelled_data import detect, read_items, records, rejects, write_files

from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

DATA = "names: [cat, dog]\ntrain: images/train\nval: images/val\n"


def read(folder, source="train", **settings):
    return read_items("yolo", folder, source, **settings)


def read_line(tmp_path, line, data=DATA, **settings):
    """Return the objects and the rejects of one label file."""
    folder = write_files(tmp_path, {"data.yaml": data, "images/train/a.jpg": b"x", "labels/train/a.txt": line})
    items = read(folder, **settings)
    return records(items)[0].objects if records(items) else (), rejects(items)


def test_a_box_is_relative_and_its_corners_come_from_its_centre(tmp_path):
    folder = write_files(
        tmp_path,
        {"data.yaml": DATA, "images/train/sub/a.jpg": b"x", "labels/train/sub/a.txt": "1 0.5 0.25 0.5 0.125\n\n"},
    )
    items = read(folder)
    (record,) = records(items)
    assert (record.record_key, record.image_path) == ("sub/a", "images/train/sub/a.jpg")
    assert (record.annotation_path, record.is_relative) == ("labels/train/sub/a.txt", True)
    assert record.declared_hw is None
    # 0.5 -+ 0.25, 0.25 -+ 0.0625
    assert [(item.class_name, item.box_xyxy) for item in record.objects] == [("dog", (0.25, 0.1875, 0.75, 0.3125))]
    assert [item.name for item in items if isinstance(item, SourceClass)] == ["cat", "dog"]


def test_an_image_without_a_label_file_has_no_boxes(tmp_path):
    folder = write_files(
        tmp_path, {"data.yaml": DATA, "images/train/a.jpg": b"x", "images/train/b.png": b"x", "labels/train/b.txt": ""}
    )
    assert [(record.record_key, record.objects) for record in records(read(folder))] == [("a", ()), ("b", ())]


@pytest.mark.parametrize(
    ("shape", "points", "expected"),
    [
        ("[2, 3]", "0.1 0.2 2 0.3 0.4 1", ((0.1, 0.2, 2), (0.3, 0.4, 1))),
        ("[2, 2]", "0.1 0.2 0 0", ((0.1, 0.2, 2), (0.0, 0.0, 0))),
    ],
)
def test_keypoints_are_read_if_the_data_file_has_their_shape(tmp_path, shape, points, expected):
    data = DATA + f"kpt_shape: {shape}\n"
    (item,), _ = read_line(tmp_path, f"0 0.5 0.5 0.5 0.5 {points}", data, keypoints=True)
    assert (item.box_xyxy, item.keypoints) == ((0.25, 0.25, 0.75, 0.75), expected)
    (without,), _ = read_line(tmp_path, f"0 0.5 0.5 0.5 0.5 {points}", data)
    assert without.keypoints is None


def test_a_polygon_becomes_its_bounding_box_and_numbers_that_are_not_finite_are_passed_on(tmp_path):
    (first, second, third), refused = read_line(
        tmp_path, "0 0.1 0.9 0.5 0.2 0.3 0.4\n0 0.1 0.9 nan 0.2 0.3 0.4\n0 nan 0.5 1e400 0.5"
    )
    assert refused == []
    assert first.box_xyxy == (0.1, 0.2, 0.5, 0.9)
    assert all(map(math.isnan, second.box_xyxy))
    assert math.isnan(third.box_xyxy[0])


@pytest.mark.parametrize(
    ("files", "number", "expected"),
    [
        ({"data.yaml": "names:\n  1: dog\n  0: cat\nnc: 2\ntrain: images"}, "1.0", "dog"),
        ({"classes.txt": "cat\ndog\n\n"}, "1", "dog"),
        ({}, "07", "7"),
    ],
)
def test_names_are_found_by_number_and_without_names_the_number_is_the_name(tmp_path, files, number, expected):
    labelled = {"images/a.jpg": b"x", "labels/a.txt": f"{number} 0.5 0.5 0.5 0.5"}
    (record,) = records(read(write_files(tmp_path, {**labelled, **files}), ""))
    assert record.objects[0].class_name == expected


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("2 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'2', but data.yaml names 0 to 1"),
        ("-1 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'-1'"),
        ("0.5 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'0.5'"),
        ("inf 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'inf'"),
        ("9" * 9000 + " 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'999"),
        ("cat 0.5 0.5 0.1 0.1", Reason.UNKNOWN_CLASS, "'cat'"),
        ("0 0.5 0.5 0.1", Reason.UNREADABLE_ANNOTATION, "got 4 values"),
        ("0 0.5 0.5 0.1 0.1 0.9", Reason.UNREADABLE_ANNOTATION, "got 6 values"),
        ("0 0.5 0.5 0.1 x", Reason.UNREADABLE_ANNOTATION, "allowed: numbers"),
        ("0 " + "0.5 " * 400_000, Reason.UNREADABLE_ANNOTATION, "1048576 characters"),
        ("\0", Reason.UNREADABLE_ANNOTATION, "got 1 values"),
    ],
)
def test_an_invalid_line_is_rejected_as_a_box(tmp_path, line, reason, detail):
    objects, (reject,) = read_line(tmp_path, line)
    assert objects == ()
    assert (reject.reason, reject.scope, reject.file, reject.record_key) == (reason, "box", "labels/train/a.txt", "a")
    assert detail in reject.detail
    assert len(reject.detail) < 200


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (b"\xff", Reason.UNREADABLE_ANNOTATION),
        (b"x" * 2_000_001, Reason.FILE_TOO_LARGE),
        (b"\n" * 100_001, Reason.TOO_MANY_BOXES),
    ],
)
def test_a_damaged_label_file_quarantines_only_its_record(tmp_path, label, reason, monkeypatch):
    monkeypatch.setattr(layout, "MAX_ANNOTATION_BYTES", 2_000_000)
    folder = write_files(
        tmp_path,
        {"data.yaml": DATA, "images/train/a.jpg": b"x", "images/train/b.jpg": b"x", "labels/train/a.txt": label},
    )
    items = read(folder)
    assert [(item.reason, item.scope, item.record_key) for item in rejects(items)] == [(reason, "record", "a")]
    assert [record.record_key for record in records(items)] == ["b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [cat, yes]", r"names\[1\]: .*True"),
        ("names: [cat, '']", r"names\[1\]: .*''"),
        ("names: [cat, cat]", "names: .*'cat'"),
        ("names: {0: cat, 2: dog}", "names: number 1 "),
        ("names: cat", "names: got 'cat'"),
        ("names: [cat]\nnc: 2", "nc: got 2.* 1"),
        ("names: [cat]\nkpt_shape: [1, 4]", "kpt_shape: got"),
        ("names: [cat]\ntrain: [1]", "train: got"),
        ("names: [cat]\npath: [1]", "path: got"),
        ("- cat", "names, train"),
        ("a: &a [x]\nb: *a", "anchors and aliases"),
        ("names: [", "not valid YAML"),
        ("names: !!python/object:os.system [cat]", "YAML tag"),
    ],
)
def test_an_invalid_data_file_is_an_error_with_its_name(tmp_path, text, message):
    folder = write_files(tmp_path, {"data.yaml": text, "images/a.jpg": b"x"})
    with pytest.raises(InputError, match=rf"data\.yaml.*{message}"):
        read(folder, "")


@pytest.mark.parametrize(
    ("data", "image"),
    [
        ("path: sets\ntrain: images/train", "sets/images/train/a.jpg"),
        ("path: /content/drive/sets\ntrain: images/train", "images/train/a.jpg"),
        ("path: ../datasets/sets\ntrain: images/train", "images/train/a.jpg"),
        ("train: ../train/images", "train/images/a.jpg"),
        ("train: ./images/train/", "images/train/a.jpg"),
        ("train: [images/train]", "images/train/a.jpg"),
        ("train: .", "images/a.jpg"),
    ],
)
def test_folders_are_found_below_path_or_beside_the_data_file(tmp_path, data, image):
    folder = write_files(tmp_path, {"data.yaml": data, image: b"x", image.replace("images", "labels")[:-3] + "txt": ""})
    (record,) = records(read(folder))
    assert record.image_path == image


def test_with_several_folders_keys_are_relative_to_the_data_folder(tmp_path):
    folder = write_files(
        tmp_path, {"data.yaml": "train: [a/images, b/images]", "a/images/1.jpg": b"x", "b/images/1.jpg": b"x"}
    )
    assert [record.record_key for record in records(read(folder))] == ["a/images/1", "b/images/1"]


def test_the_default_source_reads_a_folder_of_two_splits_once(tmp_path):
    folder = write_files(
        tmp_path,
        {"data.yaml": "train: images/a\nval: images/a\ntest: images/none", "images/a/1.jpg": b"x"},
    )
    assert [record.record_key for record in records(read(folder, ""))] == ["1"]


def test_a_list_of_images_is_read_only_inside_the_folder(tmp_path):
    lines = f"images/train/a.jpg\n./images/train/b.jpg\n{tmp_path}/images/train/c.jpg\n/etc/d.jpg\n../e.jpg\n"
    folder = write_files(tmp_path, {"data.yaml": "train: train.txt", "train.txt": lines})
    items = read(folder)
    assert [record.image_path for record in records(items)] == [f"images/train/{name}.jpg" for name in "abc"]
    assert [record.record_key for record in records(items)] == [f"images/train/{name}" for name in "abc"]
    assert [(item.reason, item.record_key) for item in rejects(items)] == [
        (Reason.PATH_OUTSIDE, "/etc/d"),
        (Reason.PATH_OUTSIDE, "../e"),
    ]


@pytest.mark.parametrize(
    ("data", "source", "message"),
    [
        (DATA, "train", "train: got 'images/train'"),
        ("train: /etc", "train", "train: got '/etc'"),
        ("train: ../../etc", "train", "train: got '../../etc'"),
        ("names: [cat]", "", "no images for split 'train'"),
    ],
)
def test_a_missing_source_is_an_error(tmp_path, data, source, message):
    with pytest.raises(InputError, match=message):
        read(write_files(tmp_path, {"data.yaml": data}), source)


def test_a_changed_data_file_is_read_again(tmp_path):
    (first,), _ = read_line(tmp_path, "1 0.5 0.5 0.5 0.5")
    (second,), _ = read_line(tmp_path, "1 0.5 0.5 0.5 0.5", DATA.replace("dog", "horse"))
    assert (first.class_name, second.class_name) == ("dog", "horse")


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_line_ends_separate_lines(tmp_path, end):
    objects, (reject,) = read_line(tmp_path, f"0 0.5 0.5 0.5 0.5{end}0 0.5 0.5 0.5 0.5\r\n")
    assert (objects, reject.detail[:14]) == ((), "line 1: got 10")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_line_ends_are_counted_once(tmp_path, end):
    objects, found = read_line(tmp_path, f"0 0.5 0.5 0.5 0.5{end}" + end * 99_998)
    assert (len(objects), found) == (1, [])


def test_a_list_may_have_backslashes(tmp_path):
    files = {"data.yaml": "train: train.txt", "train.txt": "images\\a.jpg\n", "images/a.jpg": b"x"}
    assert [record.image_path for record in records(read(write_files(tmp_path, files)))] == ["images/a.jpg"]


def test_a_list_is_split_only_at_line_ends(tmp_path):
    folder = write_files(
        tmp_path, {"data.yaml": "train: train.txt", "train.txt": "images/a\x0cb.jpg\r\n\r\nimages/c.jpg"}
    )
    assert [record.image_path for record in records(read(folder))] == ["images/a\x0cb.jpg", "images/c.jpg"]


def test_a_label_file_with_an_upper_case_suffix_is_read(tmp_path):
    folder = write_files(tmp_path, {"images/a.jpg": b"x", "labels/a.TXT": "0 0.5 0.5 0.5 0.5"})
    assert detect("yolo", folder) is not None
    (record,) = records(read(folder, ""))
    assert (record.annotation_path, len(record.objects)) == ("labels/a.TXT", 1)


def test_labels_beside_images_are_ignored_if_a_labels_folder_exists(tmp_path):
    folder = write_files(tmp_path, {"images/a.jpg": b"x", "images/a.txt": "a caption", "labels/b.txt": ""})
    (record,) = read(folder, "")
    assert (record.annotation_path, record.objects) == ("", ())


def test_labels_are_found_in_a_folder_beside_or_among_the_images(tmp_path):
    line = "0 0.5 0.5 0.5 0.5"
    files = {"train/a.jpg": b"x", "train/labels/a.txt": line, "train/b.jpg": b"x", "train/b.txt": line}
    assert [len(record.objects) for record in records(read(write_files(tmp_path, files)))] == [1, 1]


def test_darknet_lists_are_read_with_and_without_its_folder(tmp_path):
    files = {"obj.names": "cat", "train.txt": "data/obj_train_data/a.jpg", "obj_train_data/a.jpg": b"x"}
    (record,) = records(read(write_files(tmp_path, files), "train.txt"))
    assert (record.record_key, record.image_path) == ("obj_train_data/a", "obj_train_data/a.jpg")
    folder = write_files(tmp_path, {"data/obj_train_data/a.jpg": b"x"})
    assert records(read(folder, ""))[0].image_path == "data/obj_train_data/a.jpg"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"classes.txt": "cat\ncat"}, r"classes\.txt: 'cat'"),
        ({"classes.txt": "cat\n\ndog"}, r"classes\.txt\[1\]: .*''"),
        ({"classes.txt": "\n".join(map(str, range(100_001)))}, "got 100001 .*allowed: 100000"),
        ({"train/classes.txt": "cat", "val/classes.txt": "dog"}, r"val/classes\.txt: .* train/classes\.txt"),
    ],
)
def test_invalid_lists_of_names_are_errors(tmp_path, files, message):
    with pytest.raises(InputError, match=message):
        read(write_files(tmp_path, {**files, "train/a.jpg": b"x"}), "train")


def test_one_repeated_name_among_many_is_found(tmp_path):
    names = [f"class {number}" for number in range(60_000)]  # takes minutes if each name is counted in the whole list
    with pytest.raises(InputError, match="'class 59999'"):
        read(write_files(tmp_path, {"classes.txt": "\n".join([*names, names[-1]]), "a.jpg": b"x"}), "")


def test_an_invalid_character_in_the_data_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"data\.yaml:1: .*YAML"):
        read(write_files(tmp_path, {"data.yaml": 'names: ["\\UFFFFFFFF"]'}), "")
