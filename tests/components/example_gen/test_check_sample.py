import json

import pytest
from PIL import Image

from detloom.components.example_gen.check_sample import check_sample, check_sample_as_json
from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.errors import InputError

VOC = ExampleGenParams(format="voc", splits={"train": "a", "eval": "b"})


def test_only_the_first_records_of_each_source_are_read(make_voc):
    folder = make_voc({"a": [f"c{number}" for number in range(9)], "b": ["d1", "d2", "d3"]})
    report = check_sample(str(folder), VOC, 4)
    assert (report.data_format, report.num_records, report.num_records_refused) == ("voc", 4, 0)  # two of each split
    assert (report.num_boxes, report.num_boxes_refused, report.first) == (4, 0, "")


def test_records_without_images_are_refused_with_the_reason(make_voc):
    folder = make_voc({"a": ["c1", "c2"], "b": ["d1"]})
    for image in folder.glob("JPEGImages/*.jpg"):
        image.unlink()
    before = sorted(folder.rglob("*"))
    report = json.loads(check_sample_as_json(str(folder), json.dumps(VOC.to_properties()), "48"))
    assert (report["error"], report["reasons"]) == ("", {"missing_file": 3})
    assert (report["num_records"], report["num_records_refused"], report["num_boxes_refused"]) == (3, 3, 3)
    assert report["first"].startswith("JPEGImages/c1.jpg: ")
    assert sorted(folder.rglob("*")) == before


def test_an_image_of_another_size_and_a_box_outside_are_found(make_voc):
    folder = make_voc({"a": ["c1", "c2"], "b": ["d1"]}, {"c1": [("cat", 6, 4, 30, 24), ("cat", 70, 50, 90, 60)]})
    Image.new("RGB", (30, 30)).save(folder / "JPEGImages/d1.jpg")
    report = check_sample(str(folder), VOC, 48)
    assert report.reasons == {"box_outside_image": 1, "wrong_dimensions": 1}
    assert report.first.startswith("JPEGImages/d1.jpg: ")  # a record counts more than a box
    assert (report.num_boxes, report.num_boxes_refused) == (4, 2)


def test_the_folder_with_the_newest_date_is_read(make_voc):
    for name in ("31-12-2025", "01-02-2026"):
        root = make_voc({"a": ["c1"], "b": ["d1"]}, name=name)
    (root / "JPEGImages/c1.jpg").unlink()
    assert check_sample(f"{root.parent}/{{DD}}-{{MM}}-{{YYYY}}", VOC, 48).num_records_refused == 1


def test_the_folder_with_the_highest_span_is_read(make_voc):
    for span, name in ((9, "c1"), (10, "c2")):
        make_voc({"a": [name], "b": ["d1"]}, name=f"span-{span}")
    root = str(make_voc({"a": ["c3"], "b": ["d1"]}, name="span-2").parent)
    (make_voc({"a": ["c2"], "b": ["d1"]}, name="span-10") / "JPEGImages/c2.jpg").unlink()
    assert check_sample(f"{root}/span-{{SPAN}}", VOC, 48).first.startswith("JPEGImages/c2.jpg: ")
    with pytest.raises(InputError, match="no folder matches"):
        check_sample(f"{root}/part-{{SPAN}}", VOC, 48)


def test_what_would_stop_the_ingestion_becomes_the_error(make_voc):
    folder = make_voc({"a": ["c1"], "b": ["d1"]})
    params = ExampleGenParams(format="voc", splits={"train": "a", "eval": "none"})
    report = json.loads(check_sample_as_json(str(folder), json.dumps(params.to_properties()), "48"))
    assert "none" in report["error"]
    params = ExampleGenParams(format="voc", splits={"train": "a", "eval": "b"}, classes=("dog",))
    report = json.loads(check_sample_as_json(str(folder), json.dumps(params.to_properties()), "48"))
    assert "has class 'cat', allowed: ['dog']" in report["error"]
