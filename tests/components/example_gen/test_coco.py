"""COCO: records read, records quarantined, and errors that refuse the whole file."""

import json
import math

import pytest
from labelled_data import classes, detect, read_items, records, rejects

from detloom.components.example_gen.sources import coco, image_entries
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

CATEGORIES = ({"id": 3, "name": "cat"}, {"id": 7, "name": "dog"})


def read(folder, source="train.json", **settings):
    return read_items("coco", folder, source, **settings)


def write(folder, images, annotations=(), categories=CATEGORIES, name="train.json"):
    data = {"images": list(images), "annotations": list(annotations), "categories": list(categories)}
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(data), encoding="utf-8")
    return folder


def read_objects(folder, annotation, **settings):
    write(folder, [{"id": 1, "file_name": "a.jpg"}], [{"image_id": 1, "category_id": 3, **annotation}])
    items = read(folder, **settings)
    (record,) = records(items)
    return record.objects, rejects(items)


def test_boxes_become_corners_and_keep_area_and_crowd(make_coco):
    annotation = {"image_id": 5, "category_id": 7, "bbox": [10, 4, 20, 8], "area": 99.5, "iscrowd": 1}
    folder = make_coco({"train.json": ([{"id": 5, "file_name": "a.jpg", "height": 40, "width": 60}], [annotation])})
    items = read(folder)
    (record,) = records(items)
    (item,) = record.objects
    assert (record.record_key, record.image_path, record.declared_hw) == ("5", "images/a.jpg", (40, 60))
    # 10 + 20 = 30, 4 + 8 = 12
    assert (item.class_name, item.box_xyxy, item.area_px, item.is_crowd) == ("dog", (10, 4, 30, 12), 99.5, True)
    assert classes(items) == [SourceClass("cat", 3), SourceClass("dog", 7)]
    assert rejects(items) == []


def test_the_order_of_the_lists_does_not_matter(tmp_path):
    images = [{"id": 2, "file_name": "b.jpg"}, {"id": 1, "file_name": "a.jpg"}]
    annotation = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
    lists = {"images": images, "annotations": [annotation], "categories": list(CATEGORIES)}
    found = []
    for order in (["images", "annotations", "categories"], ["annotations", "categories", "images"]):
        (tmp_path / "train.json").write_text(json.dumps({key: lists[key] for key in order}))
        found.append(read(tmp_path))
    assert found[0] == found[1]
    assert [len(record.objects) for record in records(found[0])] == [1, 0]


def test_numbers_that_are_not_finite_pass_through(tmp_path):
    (item,), _ = read_objects(tmp_path, {"bbox": [math.nan, 1e308, 1, 10**400], "area": math.inf})
    assert math.isnan(item.box_xyxy[0])
    assert (item.box_xyxy[1], item.box_xyxy[3], item.area_px) == (1e308, math.inf, math.inf)


@pytest.mark.parametrize(
    ("source", "image", "expected"),
    [
        ("annotations/instances_train2017.json", "train2017/a.jpg", "train2017/a.jpg"),
        ("annotations/instances_train2017.json", "images/train2017/a.jpg", "images/train2017/a.jpg"),
        ("annotations/train.json", "images/a.jpg", "images/a.jpg"),
        ("annotations/train.json", "train/a.jpg", "train/a.jpg"),
        ("train/_annotations.coco.json", "train/a.jpg", "train/a.jpg"),
        ("coco/annotations/train.json", "coco/images/a.jpg", "coco/images/a.jpg"),
        ("annotations/train.json", "annotations/a.jpg", "annotations/a.jpg"),
        ("annotations/train.json", "elsewhere/a.jpg", "elsewhere/a.jpg"),
    ],
)
def test_images_are_found_in_the_usual_or_the_given_folder(tmp_path, source, image, expected):
    write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], name=source)
    (tmp_path / image).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / image).write_bytes(b"image")
    assert records(read(tmp_path, source))[0].image_path == expected
    assert records(read(tmp_path, source, images_dir="photos"))[0].image_path == "photos/a.jpg"


def test_masks_and_keypoints_are_kept_on_request(tmp_path):
    polygons = [[1, 1, 5, 1, 5, 5.5]]
    annotation = {"bbox": [1, 1, 4, 4], "segmentation": polygons, "keypoints": [1, 2, 2, 0, 0, 0]}
    (item,), rejects = read_objects(tmp_path, annotation, masks=True, keypoints=True)
    assert (item.mask, item.keypoints) == (polygons, ((1.0, 2.0, 2), (0.0, 0.0, 0)))
    assert rejects == []
    (item,), _ = read_objects(tmp_path, annotation)
    assert (item.mask, item.keypoints) == (None, None)


@pytest.mark.parametrize("counts", ["04", [0, 4]])
def test_run_length_masks_are_unchanged(tmp_path, counts):
    runs = {"size": [2, 2], "counts": counts}
    (item,), _ = read_objects(tmp_path, {"bbox": [1, 1, 4, 4], "segmentation": runs}, masks=True)
    assert item.mask == runs


@pytest.mark.parametrize("keypoints", [[1, 2], [1, 2, 3], "text", [1, None, 2], {}])
def test_invalid_keypoints_reject_the_box(tmp_path, keypoints):
    objects, (reject,) = read_objects(tmp_path, {"bbox": [1, 1, 4, 4], "keypoints": keypoints}, keypoints=True)
    assert objects == ()
    assert (reject.reason, reject.scope) == (Reason.UNREADABLE_KEYPOINTS, "box")


@pytest.mark.parametrize("form", [str, float, int])
def test_ids_may_be_floats_or_text(tmp_path, form):
    annotation = {"image_id": form(1), "category_id": form(3), "bbox": [1, 2, 3, 4]}
    write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], [annotation], [{"id": form(3), "name": "cat"}])
    (record,) = records(read(tmp_path))
    assert [item.class_name for item in record.objects] == ["cat"]


@pytest.mark.parametrize(
    ("own", "group", "used", "expected"),
    [("none", "a", 1, [0, 1]), ("none", "x", 1, [1, 2]), ("none", "a", 0, [1, 2]), ("a", "b", 1, [1, 2])],
)
def test_categories_from_0_are_numbered_from_1_unless_0_groups_the_others(tmp_path, own, group, used, expected):
    categories = [{"id": 0, "name": "a", "supercategory": own}, {"id": 1, "name": "b", "supercategory": group}]
    annotation = {"image_id": 1, "category_id": used, "bbox": [1, 2, 3, 4]}
    items = read(write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], [annotation], categories))
    assert [item.class_id for item in classes(items)] == expected
    assert [item.class_name for item in records(items)[0].objects] == [categories[used]["name"]]


def test_an_unused_category_0_with_the_name_of_a_class_is_dropped(tmp_path):
    """Roboflow writes such a category for a project named after its class."""
    categories = [{"id": 0, "name": "pothole"}, {"id": 1, "name": "pothole"}]
    images, box = [{"id": 1, "file_name": "a.jpg"}], {"image_id": 1, "bbox": [1, 2, 3, 4]}
    items = read(write(tmp_path, images, [{**box, "category_id": 1}], categories))
    assert classes(items) == [SourceClass("pothole", 1)]
    assert [item.class_name for item in records(items)[0].objects] == ["pothole"]
    write(tmp_path, images, [{**box, "category_id": 1}, {**box, "category_id": 0}], categories)
    with pytest.raises(InputError, match=r"'pothole'.*ids 0 and 1"):
        read(tmp_path)


def test_backslashes_in_file_names_become_slashes(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "i0.jpg").write_bytes(b"image")
    write(tmp_path, [{"id": 1, "file_name": "images\\i0.jpg"}, {"id": 2, "file_name": "..\\..\\x.jpg"}])
    items = read(tmp_path)
    assert [record.image_path for record in records(items)] == ["images/i0.jpg"]
    assert [reject.reason for reject in rejects(items)] == [Reason.PATH_OUTSIDE]


def test_a_size_may_be_a_float_with_a_whole_value(tmp_path):
    write(tmp_path, [{"id": 1, "file_name": "a.jpg", "height": 40.0, "width": 64.0}])
    assert records(read(tmp_path))[0].declared_hw == (40, 64)


def test_annotations_without_an_image_are_one_reject(tmp_path):
    strays = [1, {"image_id": 9, "category_id": 3, "bbox": [1, 2, 3, 4]}, {"image_id": 9}]
    (reject,) = rejects(read(write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], strays)))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.UNKNOWN_IMAGE, "box", 3)
    assert reject.detail.startswith("annotations[0]: ")
    assert reject.detail.endswith("2 more annotations have no image")


def test_broken_json_names_file_and_line(tmp_path):
    (tmp_path / "train.json").write_text('{"images": [],\n "annotations": [oops]}')
    with pytest.raises(InputError, match=r"train\.json:2: .*JSON"):
        read(tmp_path)


def with_categories(text):
    return f'{{"images": [], "annotations": [], "categories": [{text}]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "got a list"),
        ('{"images": {}}', "'images'.*got an object"),
        ('{"images": [], "annotations": []}', "'categories'.*got nothing"),
        (with_categories('{"id": "a", "name": "a"}'), r"categories\[0\]"),
        (with_categories('{"id": 1, "name": " "}'), r"categories\[0\]: 'name' must be 1 to 4096 bytes .*got ''"),
        (with_categories(f'{{"id": 1, "name": "{"x" * 10**6}"}}'), r"categories\[0\]: 'name' .*got 1000000 characters"),
        (with_categories('{"id": 1, "id": 2, "name": "a"}'), r"categories\[0\]: .*'id' twice"),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
            r"categories\[1\]: id 1",
        ),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a "}]}',
            "'a'.*ids 1 and 2",
        ),
        ("[" * 100_000, "object"),
        ("\xff", "UTF-8"),
        ("", "empty"),
    ],
)
def test_a_file_with_the_wrong_structure_is_an_error_with_its_name(tmp_path, text, message):
    (tmp_path / "train.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=rf"train\.json.*{message}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("text", Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": 7}, Reason.UNREADABLE_ANNOTATION),
        ({"id": None, "file_name": "a.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": False, "file_name": "a.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1.5, "file_name": "a.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "height": "40"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "width": -1}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "\ud800.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a\0.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a" * 4097}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "é" * 2049}, Reason.UNREADABLE_ANNOTATION),
        ({"id": "x" * 4097, "file_name": "a.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "width": 64.5}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "width": math.inf}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "width": math.nan}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "../a.jpg"}, Reason.PATH_OUTSIDE),
        ({"id": 1, "file_name": "/a.jpg"}, Reason.PATH_OUTSIDE),
    ],
)
def test_an_invalid_image_entry_quarantines_its_record(tmp_path, image, reason):
    annotation = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
    write(tmp_path, [image], [annotation] if isinstance(image, dict) and image["id"] == 1 else [])
    (reject,) = rejects(read(tmp_path))
    assert (reject.reason, reject.scope, reject.file) == (reason, "record", "train.json")
    assert reject.num_boxes == (reject.record_key == "1")


def test_images_with_the_same_id_are_all_rejected(tmp_path):
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}, {"id": 1, "file_name": "c.jpg"}]
    annotations = [{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}] * 2
    items = read(write(tmp_path, images, annotations))
    assert [record.record_key for record in records(items)] == ["2"]
    found = rejects(items)
    assert [(reject.reason, reject.record_key, reject.num_boxes) for reject in found] == [
        (Reason.DUPLICATE_ID, "1", 2),
        (Reason.DUPLICATE_ID, "1", 0),
    ]
    assert [reject.detail.split(":")[0] for reject in found] == ["images[0]", "images[2]"]


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ({"image_id": 1, "category_id": 99, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": "x", "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": True, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": 2**70, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3]}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, "4"]}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": "1234"}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": [True, 1, 2, 3]}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": "yes"}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 2}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 2, "category_id": 3, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_IMAGE),
        ({"image_id": 2, "category_id": 99}, Reason.UNKNOWN_IMAGE),
        ({"image_id": [1], "category_id": 3, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_IMAGE),
        ("text", Reason.UNKNOWN_IMAGE),
    ],
)
def test_an_invalid_annotation_is_rejected_as_a_box(tmp_path, annotation, reason):
    items = read(write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], [annotation]))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope, reject.num_boxes) == (reason, "box", 1)
    assert "annotations[0]" in reject.detail
    assert len(records(items)) == 1


def test_an_image_with_a_repeated_key_is_rejected(tmp_path):
    write(tmp_path, [{"id": 1, "file_name": "a.jpg"}])
    text = (tmp_path / "train.json").read_text()
    (tmp_path / "train.json").write_text(text.replace('"id": 1, ', '"id": 1, "file_name": "b.jpg", '))
    (reject,) = rejects(read(tmp_path))
    assert (reject.reason, reject.detail) == (
        Reason.UNREADABLE_ANNOTATION,
        "images[0]: it contains the key 'file_name' twice",
    )


def test_only_the_oversized_entries_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "MAX_ANNOTATION_BYTES", 1000)
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b" * 3000}]
    annotations = [{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}, {"image_id": 1, "text": "x" * 3000}]
    items = read(write(tmp_path, images, annotations))
    (record,) = records(items)
    assert (record.record_key, len(record.objects)) == ("1", 1)
    assert sorted((reject.scope, reject.record_key) for reject in rejects(items)) == [
        ("box", ""),
        ("record", "#1"),
    ]


def test_an_image_with_too_many_objects_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(image_entries, "MAX_OBJECTS_PER_IMAGE", 3)
    annotations = [{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}] * 5
    (reject,) = rejects(read(write(tmp_path, [{"id": 1, "file_name": "a.jpg"}], annotations)))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.TOO_MANY_BOXES, "record", 5)


def test_details_quote_only_the_start_of_a_huge_value(tmp_path):
    _, (reject,) = read_objects(tmp_path, {"bbox": ["x" * 100_000, [[[[[1]]]]]]})
    assert len(reject.detail) < 150


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("notes.json", {"categories": [{"id": 0, "name": "cat"}], "info": {}}),  # written by Label Studio
        ("test.json", {"images": [], "categories": []}),
        ("image_info_test2017.json", {"images": [{"id": 1, "file_name": "a" * 40_000}], "categories": []}),
        ("panoptic_val2017.json", {"images": [{"file_name": "a" * 40_000}], "annotations": [], "categories": []}),
        ("x.json", {"images": [], "annotations": [{"segments_info": [{"bbox": [1, 2, 3, 4]}]}], "categories": []}),
    ],
)
def test_files_without_boxes_are_not_detected(tmp_path, name, data):
    (tmp_path / name).write_text(json.dumps(data))
    write(tmp_path, [], name="labels.json")
    evidence = detect("coco", tmp_path)
    assert evidence.sentence == "COCO annotations in labels.json"
    (tmp_path / "labels.json").unlink()
    assert detect("coco", tmp_path) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"images": []}, "'annotations'.*got nothing"),
        ({"annotations": [{"segments_info": []}]}, "'segments_info'.*panoptic"),
        ({"annotations": [{"caption": "a cat"}]}, "'caption'.*caption file"),
    ],
)
def test_a_source_file_without_boxes_is_an_error(tmp_path, data, message):
    (tmp_path / "panoptic_val2017.json").write_text(json.dumps({"categories": [], **data}))
    with pytest.raises(InputError, match=rf"panoptic_val2017\.json: .*{message}"):
        read(tmp_path, "panoptic_val2017.json")


def test_a_file_that_starts_with_many_categories_is_detected(tmp_path):
    annotation = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
    categories = [{"id": number, "name": f"class {number}"} for number in range(2000)]
    images = [{"id": 1, "file_name": "a.jpg"}]
    data = {"categories": categories, "images": images, "annotations": [annotation] * 2000}
    (tmp_path / "train.json").write_text(json.dumps(data))
    assert detect("coco", tmp_path) is not None
