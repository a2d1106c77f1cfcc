import re
from dataclasses import replace

import pytest

from detloom.components.dataset_validator.report import augment_page
from detloom.components.dataset_validator.report.augment_page import write_augment_page
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.presets.presets import find_preset

BOX = (0.1, 0.1, 0.6, 0.6)


@pytest.fixture
def examples(tmp_path, make_example, write_records):
    """Two splits of two images each: a cat, and a cat with a dog."""
    folder = tmp_path / "blood cells"
    for split in ("eval", "train"):
        records = [make_example([BOX], [1], name=f"{split}_cat"), make_example([BOX] * 2, [1, 2], name=f"{split}_dog")]
        write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(["cat", "<b>dog</b>"]))
    return folder


@pytest.fixture(scope="module")
def config():
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    return with_augmentations(preset, (RandomHorizontalFlip(),))


def with_augmentations(config, augmentations):
    return replace(config, train=replace(config.train, augmentations=augmentations))


def captions(page):
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


def test_a_row_shows_the_stored_image_and_its_versions(examples, tmp_path, config):
    page = write_augment_page(examples, tmp_path / "new", config, num_images=1, num_versions=2)
    assert page == tmp_path / "new" / "augment.html"
    text = page.read_text("utf-8")
    assert re.findall(r"<h2>(.*?)</h2>", text)[0].startswith("train/train_")
    assert captions(text)[1:] == ["version 1", "version 2"]
    assert re.fullmatch(r"stored: 64 × 64 px, [12] box(es)?", captions(text)[0])
    assert text.count("data:image/jpeg;base64,") == 3
    assert '<li>RandomHorizontalFlip <span class="soft">probability 0.5</span></li>' in text


def test_without_augmentations_the_page_says_so(examples, tmp_path, config):
    plain = with_augmentations(config, ())
    text = write_augment_page(examples, tmp_path / "a.html", plain, num_versions=1).read_text("utf-8")
    assert "<li>" not in text
    assert "None: training uses the stored images" in text


def test_split_and_class_can_be_selected_and_names_are_escaped(examples, tmp_path, config):
    text = write_augment_page(
        examples, tmp_path / "a.html", config, split="eval", class_name="<b>dog</b>", num_versions=1
    ).read_text("utf-8")
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["eval/eval_dog"]
    assert "&lt;b&gt;dog&lt;/b&gt;" in text
    assert "<b>" not in text


def test_a_record_that_training_cannot_read_is_reported(tmp_path, config, make_example, write_records):
    folder = tmp_path / "data"
    write_records(folder / "Split-train" / "data_tfrecord-00000-of-00001", [make_example([BOX], [9], name="strange")])
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(["cat"]))
    text = write_augment_page(folder, tmp_path / "a.html", config).read_text("utf-8")
    assert "training cannot read it" in text
    assert captions(text) == []


def test_images_that_do_not_fit_into_the_page_are_counted(examples, tmp_path, config, monkeypatch):
    monkeypatch.setattr(augment_page, "_MAX_PAGE_BYTES", 15_000)  # a row of two images has about 10,000 bytes
    text = write_augment_page(examples, tmp_path / "a.html", config, num_versions=1).read_text("utf-8")
    assert "1 of the selected images" in text
    assert len(captions(text)) == 2


@pytest.mark.parametrize("numbers", [{"num_images": 0}, {"num_images": 49}, {"num_versions": 9}])
def test_too_many_or_too_few_images_are_refused(examples, tmp_path, config, numbers):
    with pytest.raises(InputError, match=r"(images|versions) .*got \d+, allowed: 1 to"):
        write_augment_page(examples, tmp_path / "a.html", config, **numbers)
