"""Nothing of a data set is lost without a word: labels without images, images without labels, data without boxes."""

import base64
import json

import pytest
from labelled_data import encode_image, format_voc, make_record, read_rejects, write_files

from detloom.schemas.errors import InputError

LABEL = "0 0.5 0.5 0.5 0.5\n"
BOX = ("cat", 6, 4, 30, 24)


def images(*names):
    return {name: encode_image(number) for number, name in enumerate(names)}


def yolo(*labels, names=("a", "b", "c")):
    return images(*(f"images/{name}.jpg" for name in names)) | dict.fromkeys(labels, LABEL)


def voc(*names, box=BOX):
    return {f"{name}.xml": format_voc(f"{name}.jpg", [box], (40, 60)) for name in names}


def coco(box, file_name="a.jpg", category_id=1):
    annotations = [{"image_id": 1, "category_id": category_id, "bbox": box}] if box else []
    categories = [{"id": 1, "name": "cat"}]
    data = {"images": [{"id": 1, "file_name": file_name}], "annotations": annotations, "categories": categories}
    return images("a.jpg") | {"all.json": json.dumps(data)}


def ingest_all(run_ingest, tmp_path, files, **changes):
    folder = write_files(tmp_path / "data", files)
    return run_ingest(folder, tmp_path / "out", **{"format": "auto", "splits": {}, **changes})


@pytest.mark.parametrize(
    ("files", "num_boxes", "counted", "first"),
    [
        (yolo("labels/a.txt", "labels/b.txt", "labels/c.txt"), 3, 0, []),
        (yolo("labels/a.txt", "labels/b.txt"), 2, 1, ["images/c.jpg"]),
        (images("a.jpg", "b.jpg", "c.jpg") | voc("a", "b"), 2, 1, ["c.jpg"]),
        (images("b.jpg") | coco([1, 2, 3, 4]), 1, 1, ["b.jpg"]),
        (images("elsewhere/b.jpg") | coco([1, 2, 3, 4]), 1, 0, []),
    ],
)
def test_images_without_a_label_are_counted_named_and_gated(tmp_path, run_ingest, files, num_boxes, counted, first):
    report = ingest_all(run_ingest, tmp_path, files)
    assert (report["num_boxes_written"], report["num_unlisted_images"]) == (num_boxes, counted)
    assert report["unlisted_images"] == first
    if counted:
        with pytest.raises(
            InputError, match=rf"1 of \d images have no label, such as {first[0]}.*max_unlisted_fraction"
        ):
            ingest_all(run_ingest, tmp_path, files, max_unlisted_fraction=0.1)


def test_label_files_without_an_image_are_rejected_boxes(tmp_path, run_ingest):
    files = yolo("labels/a.txt", "labels/d.txt", "labels/e.jpg.txt") | {"labels/notes.txt": "a b", "classes.txt": "cat"}
    report = ingest_all(run_ingest, tmp_path, files, max_reject_fraction=1.0, max_unlisted_fraction=1.0)
    assert (report["num_boxes_in"], report["num_boxes_written"]) == (3, 1)
    assert report["rejects_by_reason"] == {"unknown_image": 2}
    assert {reject.file for reject in read_rejects(tmp_path / "out/rejects")} == {"labels/d.txt", "labels/e.jpg.txt"}
    with pytest.raises(InputError, match=r"2 of 3 boxes .*labels/d\.txt"):
        ingest_all(run_ingest, tmp_path, files, max_unlisted_fraction=1.0)


def test_what_a_source_does_not_ask_for_is_not_missing(tmp_path, run_ingest):
    files = {f"{part}/labels/{part}.txt": LABEL for part in ("train", "val", "test")}
    files |= images(*(f"{part}/images/{part}.jpg" for part in ("train", "val", "test")), "val/images/x.jpg")
    report = ingest_all(run_ingest, tmp_path, files, splits={"train": "train/images"}, max_unlisted_fraction=0.0)
    assert (report["num_boxes_in"], report["num_unlisted_images"]) == (1, 0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            yolo("other/labels.txt") | {"data.yaml": "train: images\nnames: [a]"},
            "3 images, but no box.*other/labels.txt",
        ),
        (yolo("labels/x.txt"), r"1 boxes were rejected; the first reason is labels/x\.txt: no image has"),
        (coco([]), "1 images, but no box.*seen: all.json"),
        (coco("text"), r"1 boxes were rejected; the first reason is all\.json: annotations\[0\]: 'bbox'"),
        (images("a.jpg") | voc("a", box=("cat", "left", 4, 30, 24)), r"first reason is a\.xml: object 0"),
    ],
)
def test_labelled_data_without_a_box_fail_with_the_first_reason(tmp_path, run_ingest, files, message):
    with pytest.raises(InputError, match=message + ".*--allow-no-objects or data.allow_no_objects"):
        ingest_all(run_ingest, tmp_path, files)


@pytest.mark.parametrize("settings", [{"format": "coco"}, {"format": "voc", "classes": ("dog",)}])
def test_data_of_other_classes_only_fail_with_that_reason(tmp_path, run_ingest, settings):
    files = images("a.jpg") | voc("a") if settings["format"] == "voc" else coco([1, 2, 3, 4], category_id=99)
    with pytest.raises(InputError, match="left out were: other_class 1, whose classes are not in the label map"):
        ingest_all(run_ingest, tmp_path, files, unknown_class="leave_out", **settings)


def test_two_exports_of_the_same_labels_are_both_named(tmp_path, run_ingest):
    text = "filename,class,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,3,4\n"
    files = images("a.jpg") | {"again.csv": text, "more.csv": text}
    with pytest.raises(InputError, match=r"if again\.csv and more\.csv have the same labels, remove one"):
        ingest_all(run_ingest, tmp_path, files)


def test_data_without_objects_can_be_allowed(tmp_path, run_ingest):
    report = ingest_all(run_ingest, tmp_path, coco([]), allow_no_objects=True)
    assert (report["num_written"], report["num_boxes_in"]) == (1, 0)


@pytest.mark.parametrize(
    "files", [coco([0.1, 0.2, 0.5, 0.5]), images("a.jpg") | voc("a", box=("cat", 0.1, 0.2, 0.6, 0.7))]
)
def test_boxes_that_are_fractions_are_recognized_and_read_on_request(tmp_path, run_ingest, read_features, files):
    with pytest.raises(InputError, match=r"all 1 boxes are inside of 1x1 pixel.*data\.fractional_boxes"):
        ingest_all(run_ingest, tmp_path, files)
    ingest_all(run_ingest, tmp_path, files, fractional_boxes=True)
    (features,) = read_features(tmp_path / "out/Split-train")
    assert features["image/object/bbox/xmax"].float_list.value[0] == pytest.approx(0.6)


def test_a_labelme_file_may_contain_its_image(tmp_path, run_ingest):
    shape = {"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}
    embedded = {"imagePath": "a.jpg", "imageData": base64.b64encode(encode_image()).decode()}
    files = {"a.json": json.dumps({"shapes": [shape], **embedded})}
    files["b.json"] = json.dumps({"shapes": [shape], **embedded, "imageData": "x"})
    report = ingest_all(run_ingest, tmp_path, files, max_reject_fraction=0.5)
    assert (report["num_written"], report["rejects_by_reason"]) == (1, {"not_an_image": 1})


@pytest.mark.parametrize(
    ("files", "message"), [({}, "no label map"), ({"a.pbtxt": "", "b.pbtxt": ""}, "a.pbtxt and b.pb")]
)
def test_classes_name_the_ids_of_records_without_a_label_map(tmp_path, run_ingest, write_records, files, message):
    """All records have one source id, as some tools write; their file names are the keys then."""
    record = {"boxes": [(0.1, 0.1, 0.5, 0.5)], "class_ids": [2], "image": encode_image()}
    examples = [make_record("one", f"{name}.jpg", **record) for name in "abc"]
    write_records(write_files(tmp_path / "data", files) / "train.record", examples)
    with pytest.raises(InputError, match=f"class id 2 .*{message}.*label_map.pbtxt.*data.classes"):
        ingest_all(run_ingest, tmp_path, {})
    report = ingest_all(run_ingest, tmp_path, {}, classes=("a", "b"))
    assert (report["num_boxes_written"], report["splits"]["train"]["boxes_by_class"]) == (3, {"a": 0, "b": 3})
