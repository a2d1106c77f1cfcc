"""Names that are written in another way than files are named."""

import json
import unicodedata

import pytest
from labelled_data import encode_image, format_voc, read_items, read_rejects, records, rejects, write_files

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import name_index
from detloom.schemas.contracts.rejects import Reason

NFC, NFD = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
LABEL = "0 0.5 0.5 0.5 0.5\n"


@pytest.mark.parametrize(
    ("files", "written", "expected"),
    [
        ([f"images/{NFD}.jpg"], f"images/{NFC}.jpg", [f"images/{NFD}.jpg"]),
        (["images/my im.jpg"], "images/my%20im.jpg", ["images/my im.jpg"]),
        (["images/my%20im.jpg"], "my im.jpg", ["images/my%20im.jpg"]),
        (["Images/A.JPG"], "images/a.jpg", ["Images/A.JPG"]),
        (["images/a.jpg"], "C:\\me\\images\\a.jpg", ["images/a.jpg"]),
        (["images/a.jpg"], "/home/me/pictures/a.jpg", ["images/a.jpg"]),
        (["cam1/a.jpg", "cam2/a.jpg"], "/home/me/cam2/a.jpg", ["cam2/a.jpg"]),
        (["x/cam1/a.jpg", "y/cam1/a.jpg"], "/home/y/cam1/a.jpg", ["y/cam1/a.jpg"]),
        (["cam1/a.jpg", "cam2/a.jpg"], "a.jpg", ["cam1/a.jpg", "cam2/a.jpg"]),
        (["images/a.jpg"], "a", ["images/a.jpg"]),
        (["images/a.png"], "a.jpg", ["images/a.png"]),
        (["images/a.png", "images/a.jpg.jpg"], "a.png", ["images/a.png"]),
        (["val/a.jpg"], "train/a.jpg", []),
        (["val/a.jpg"], "valid/a.jpg", ["val/a.jpg"]),
        (["a.txt", "b.jpg"], "a.jpg", []),
        (["a.jpg"], "%00../\udcff", []),
    ],
)
def test_an_image_is_found_by_its_written_name(tmp_path, files, written, expected):
    folder = DataFolder(str(write_files(tmp_path, dict.fromkeys(files, b"x"))))
    found = name_index.find_image(folder, written)
    assert ([found] if isinstance(found, str) else found) == expected


@pytest.mark.parametrize(
    ("labels", "images", "expected"),
    [
        (["annotations/train/a.txt", "annotations/val/a.txt"], ["images/train/a.jpg"], ["annotations/train/a.txt"]),
        (["labels/a.jpg.txt"], ["images/a.jpg"], ["labels/a.jpg.txt"]),
        (["elsewhere/a.txt"], ["images/a.jpg"], ["elsewhere/a.txt"]),
        (["x/a.txt", "y/a.txt"], ["images/a.jpg"], ["x/a.txt", "y/a.txt"]),
        (["labels/val/a.txt"], ["images/train/a.jpg", "images/val/a.jpg"], []),
        (["labels/A.txt"], ["images/a.jpg", "images/A.jpg"], []),
    ],
)
def test_a_label_is_found_unless_it_is_that_of_another_image(tmp_path, labels, images, expected):
    folder = DataFolder(str(write_files(tmp_path, dict.fromkeys((*labels, *images), b"x"))))
    assert sorted(name_index.index_of(folder).find_label(images[0], ".txt")) == expected


def test_a_list_names_labels_with_any_suffix_and_an_ambiguous_one_is_rejected(tmp_path):
    damaged = {"Annotations/x/b.xml": "", "Annotations/y/b.xml": ""}
    files = {
        "Annotations/a.xml": format_voc("a.jpg", [], (40, 60)),
        "ImageSets/Main/train.txt": "images/a.jpg\nb.jpg\n",
    }
    folder = write_files(tmp_path, files | damaged)
    items = read_items("voc", folder, "train")
    assert [record.annotation_path for record in records(items)] == ["Annotations/a.xml"]
    (reject,) = rejects(items)
    assert reject.reason is Reason.AMBIGUOUS_NAME
    assert "Annotations/x/b.xml, Annotations/y/b.xml" in reject.detail


def test_an_image_belongs_to_the_record_that_names_it_exactly(tmp_path, run_ingest):
    """One of three records names its image; the folders of the two others are missing."""
    images = [{"id": number, "file_name": f"cam{number}/a.jpg"} for number in (1, 2, 3)]
    annotations = [{"image_id": number, "category_id": 1, "bbox": [number, 2, 3, 4]} for number in (1, 2, 3)]
    data = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "a"}]}
    folder = write_files(tmp_path / "data", {"all.json": json.dumps(data), "cam3/a.jpg": encode_image()})
    changes = {"format": "coco", "splits": {"train": "all.json"}, "max_reject_fraction": 1.0}
    report = run_ingest(folder, tmp_path / "out", **changes)
    assert (report["num_written"], report["rejects_by_reason"]) == (1, {"duplicate_image": 2})
    (folder / "cam3").rename(folder / "elsewhere")
    with pytest.raises(Exception, match="ambiguous_name 3"):
        run_ingest(folder, tmp_path / "out", **changes)
    assert {reject.record_key for reject in read_rejects(tmp_path / "out/rejects")} == {"1", "2", "3"}
