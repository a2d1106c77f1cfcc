"""Test that the embedded data set is complete, valid except for the broken records, deterministic and disjoint."""

import json

import numpy as np
import pytest
from apache_beam.testing import test_pipeline
from labelled_data import read_rejects
from PIL import Image

from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.pipelines.samples import demo_data
from detloom.pipelines.samples.demo_data import ANNOTATION_FILES, write_demo_data
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

SMALL = {"num_train": 12, "num_eval": 4, "num_test": 6, "seed": 3, "image_hw": (96, 128)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "demo"
    write_demo_data(path, **SMALL)
    return path


def read(folder, split):
    return json.loads((folder / ANNOTATION_FILES[split]).read_text())


def test_every_split_has_its_valid_images_and_the_digits_as_classes(folder):
    for split, count in (("train", 12), ("eval", 4), ("test", 6)):
        data = read(folder, split)
        assert sum("/bad_" not in image["file_name"] for image in data["images"]) == count
        assert [(category["id"], category["name"]) for category in data["categories"]] == [
            (value + 1, str(value)) for value in range(10)
        ]


def test_boxes_enclose_ink_inside_the_image(folder):
    data = read(folder, "test")
    assert data["annotations"]
    for annotation in data["annotations"]:
        x, y, width, height = annotation["bbox"]
        assert min(x, y) >= 0
        assert min(width, height) >= 8
        assert (x + width <= 128, y + height <= 96) == (True, True)
        assert annotation["area"] == width * height


def test_ink_has_contrast_in_every_box(folder):
    data = read(folder, "test")
    names = {image["id"]: image["file_name"] for image in data["images"]}
    for annotation in data["annotations"]:
        x, y, width, height = annotation["bbox"]
        image = Image.open(folder / "images" / names[annotation["image_id"]]).convert("L")
        luma = np.asarray(image, float)[y : y + height, x : x + width]
        assert np.ptp(luma) > 60


def test_the_same_parameters_give_the_same_bytes(folder, tmp_path):
    write_demo_data(tmp_path / "again", **SMALL)
    for path in folder.rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(folder)).read_bytes() == path.read_bytes(), path


def test_a_complete_folder_is_kept_and_another_seed_replaces_it(tmp_path):
    tiny = {"num_train": 2, "num_eval": 1, "num_test": 1, "image_hw": (64, 64)}
    path = tmp_path / "demo"
    write_demo_data(path, **tiny)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    write_demo_data(path, **tiny)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    write_demo_data(path, **tiny, seed=1)
    assert json.loads((path / "demo_data.json").read_text())["parameters"]["seed"] == 1
    assert [child.name for child in tmp_path.iterdir()] == ["demo"]


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="demo data"):
        write_demo_data(tmp_path, **SMALL)
    assert [child.name for child in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_interrupted_write_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_data, "_add_bad_records", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_demo_data(tmp_path / "demo", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_splits_share_no_digit_and_test_shares_no_photograph_area():
    sources = demo_data._load_sources(np.random.default_rng(0))
    scans = [digit.tobytes() for source in sources.values() for digit, _ in source.digits]
    assert (len(scans), len(set(scans))) == (1797, 1797)  # all of load_digits, each scan once
    for train, test in zip(sources["train"].photos, sources["test"].photos, strict=True):
        assert train.shape[1] + test.shape[1] == 640  # the photographs are 640 px wide


def test_ingestion_refuses_exactly_the_broken_records(folder, tmp_path):
    params = ExampleGenParams(format="coco", splits=ANNOTATION_FILES, max_reject_fraction=0.5)
    out = IngestFolders(str(tmp_path), str(tmp_path / "rejects"))
    report = ingest(folder, params, out, test_pipeline.TestPipeline)
    assert {split: counts["num_written"] for split, counts in report["splits"].items()} == {
        "train": 14,  # 12 valid images, and 2 with other valid boxes
        "eval": 6,
        "test": 6,
    }
    found = {(reject.split, reject.reason) for reject in read_rejects(tmp_path / "rejects")}
    assert found == {
        (split, reason)
        for split in ("train", "eval")
        for reason in (
            Reason.TRUNCATED_IMAGE,
            Reason.MISSING_FILE,
            Reason.WRONG_DIMENSIONS,
            Reason.NOT_AN_IMAGE,
            Reason.BOX_WITHOUT_AREA,
            Reason.BOX_INVERTED,
        )
    }
