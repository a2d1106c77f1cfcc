import re
import subprocess
import sys

import pytest
import tensorflow as tf

from detloom.components.dataset_validator.report.inspect_page import write_inspect_page
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.errors import InputError

BOX = (0.1, 0.1, 0.6, 0.6)


@pytest.fixture
def examples(tmp_path, make_example, write_records):
    """Two splits of three images with a cat each; one image of each split also has a dog."""
    folder = tmp_path / "blood cells"
    for split in ("train", "eval"):
        records = [make_example([BOX], [1], name=f"{split}_{i}") for i in range(2)]
        records.append(make_example([BOX, BOX], [1, 2], name=f"{split}_dog"))
        write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(["cat", "<b>dog</b>"]))
    return folder


def captions(page):
    return re.findall(r"<figcaption>([^:]*):", page)


@pytest.fixture
def write(examples, tmp_path):
    """Write the page of the examples and return its text."""

    def call(**options):
        return write_inspect_page(examples, tmp_path / "page.html", **options).read_text("utf-8")

    return call


def test_the_page_counts_the_data_and_shows_images_of_each_split(write, tmp_path):
    (tmp_path / "page.html").write_text("old")
    page = write()
    assert "<h1>blood cells</h1>" in page
    assert "6 images with 8 boxes of 2 classes; splits: train, eval." in page
    assert len(captions(page)) == page.count("data:image/jpeg;base64,") == 6
    assert [caption.partition("/")[0] for caption in captions(write(num_images=2))] == ["train", "eval"]
    assert "3 images with 4 boxes of 2 classes; splits: eval." in write(split="eval")


def test_images_of_one_class_can_be_selected_and_names_are_escaped(write):
    page = write(class_name="<b>dog</b>")
    assert captions(page) == ["train/train_dog", "eval/eval_dog"]
    assert "&lt;b&gt;dog&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_folder_as_output_gets_a_page(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "new" / "folder")
    assert page == tmp_path / "new" / "folder" / "inspect.html"
    assert page.is_file()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("notes.txt", r"notes\.txt: .*\.html"),
        ("folder.html", r"folder\.html: .*folder"),
        ("notes.txt/page.html", r"notes\.txt/page\.html"),
    ],
)
def test_an_output_that_is_no_page_is_refused(examples, tmp_path, output, message):
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match=message):
        write_inspect_page(examples, tmp_path / output)
    assert (tmp_path / "notes.txt").read_text() == "keep"


def test_gzip_files_are_read(write, examples, make_example):
    path = examples / "Split-eval" / "data_tfrecord-00001-of-00002.gz"
    with tf.io.TFRecordWriter(str(path), options="GZIP") as writer:
        writer.write(make_example([BOX], name="zipped"))
    assert "eval/zipped" in captions(write(split="eval"))


def test_a_damaged_file_is_named_and_the_rest_shown(write, examples):
    path = examples / "Split-eval" / "data_tfrecord-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-5])
    (examples / "Split-test").mkdir()  # a split without records
    page = write()
    assert "damaged file eval/data_tfrecord-00000-of-00001: records after" in page
    assert "5 images" in page
    assert "splits: train, eval, test." in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "'dev', allowed: eval, train"),
        ({"class_name": "zebra"}, "class: got 'zebra', allowed: cat, <b>dog</b>"),
        ({"num_images": 0}, "got 0, allowed: 1 to 200"),
    ],
)
def test_an_invalid_option_is_refused(write, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        write(**options)


def test_a_folder_without_examples_is_refused(tmp_path):
    with pytest.raises(InputError, match="Split-NAME"):
        write_inspect_page(tmp_path, tmp_path / "page.html")


@pytest.mark.slow  # starts an interpreter
def test_the_module_does_not_import_tfx():
    code = "import detloom.components.dataset_validator.report.inspect_page, sys; sys.exit('tfx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
