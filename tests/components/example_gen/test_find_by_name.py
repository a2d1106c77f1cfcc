"""Images that are not where their annotations say."""

import pytest

from detloom.components.example_gen import find_by_name
from detloom.schemas.contracts.rejects import Reason, read_rejects

BOTH = {"splits": {"train": "train", "eval": "val"}, "max_reject_fraction": 1.0}


@pytest.fixture
def ingest_rejects(run_ingest, tmp_path):
    """Ingest a folder; return the report and the details of the missing images by record key."""

    def run(folder, **changes):
        report = run_ingest(folder, tmp_path / "out", **{**BOTH, **changes})
        rejects = list(read_rejects(tmp_path / "out/rejects"))
        return report, {reject.record_key: (reject.reason, reject.detail) for reject in rejects}

    return run


def move(folder, old, new):
    (folder / new).parent.mkdir(parents=True, exist_ok=True)
    (folder / old).rename(folder / new)


def test_images_beside_an_unusual_folder_of_labels_are_found(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a", "b"]})
    move(folder, "Annotations", "annots")
    move(folder, "JPEGImages", "photos/2024")
    report = run_ingest(folder, tmp_path / "out", splits={})
    assert (report["num_written"], report["repairs"]) == (2, {"found_by_name": 2})
    report = run_ingest(folder, tmp_path / "ratios", splits={}, split_by_ratio={"all": 1.0})
    assert {split: part["repairs"] for split, part in report["splits"].items()} == {"all": {"found_by_name": 2}}


def test_file_with_another_suffix_is_found(make_voc, ingest_rejects):
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    move(folder, "JPEGImages/a.jpg", "more/a.PNG")
    report, rejects = ingest_rejects(folder)
    assert (report["num_written"], rejects) == (3, {})


def test_reject_names_the_files_with_the_name_of_a_missing_image(make_voc, ingest_rejects):
    folder = make_voc({"train": ["a", "b", "c", "d"], "val": ["e"]})
    move(folder, "JPEGImages/a.jpg", "cam1/a.jpg")
    for name in ("cam2/a.jpg", "val_images/b.jpg"):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(b"x")
    for name in ("b", "c"):
        (folder / f"JPEGImages/{name}.jpg").unlink()
    _, rejects = ingest_rejects(folder)
    assert rejects == {
        "a": (
            Reason.MISSING_FILE,
            "the file is missing; 2 files have its name: cam1/a.jpg, cam2/a.jpg; set images_dir to the folder of the "
            "images",
        ),
        "b": (
            Reason.MISSING_FILE,
            "the file is missing; val_images/b.jpg has its name, but belongs to another split than 'train'",
        ),
        "c": (Reason.MISSING_FILE, "the file is missing, and no folder of the data set has a file named 'c.jpg'"),
    }


def test_image_that_a_record_names_belongs_to_that_record(make_coco, ingest_rejects):
    box = {"category_id": 3, "bbox": [1, 2, 3, 4]}
    images = [{"id": 1, "file_name": "x/a.jpg"}, {"id": 2, "file_name": "y/a.jpg"}, {"id": 3, "file_name": "b.jpg"}]
    folder = make_coco({"all.json": (images, [{"image_id": number, **box} for number in (1, 2, 3)])})
    (folder / "images/x/a.jpg").unlink()
    report, rejects = ingest_rejects(folder, format="coco", splits={"train": "all.json"})
    assert report["num_written"] == 2
    assert rejects["1"] == (Reason.DUPLICATE_IMAGE, "the image already belongs to record '2' of split 'train'")


def test_too_many_folders_are_not_searched(make_voc, ingest_rejects, monkeypatch):
    monkeypatch.setattr(find_by_name, "_MAX_FOLDERS", 3)
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    move(folder, "JPEGImages/a.jpg", "more/a.jpg")
    _, rejects = ingest_rejects(folder)
    assert "more than 3 folders" in rejects["a"][1]
