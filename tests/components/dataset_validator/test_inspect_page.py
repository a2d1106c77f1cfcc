import re
import subprocess
import sys

import pytest
import tensorflow as tf

from detloom.components.dataset_validator.inspect_page import write_inspect_page
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

BOX = (0.1, 0.1, 0.6, 0.6)


@pytest.fixture
def examples(tmp_path, make_example, write_records):
    """Two splits of a cat each in three pictures, one of which has a dog as well."""
    folder = tmp_path / "blood cells"
    for split in ("train", "eval"):
        records = [make_example([BOX], [1], name=f"{split}_{i}") for i in range(2)]
        records.append(make_example([BOX, BOX], [1, 2], name=f"{split}_dog"))
        write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(["cat", "<b>dog</b>"]))
    return folder


def captions(page):
    return re.findall(r"<figcaption>([^:]*):", page)


def test_the_page_names_the_data_and_counts_it(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "page.html").read_text("utf-8")
    assert "<h1>blood cells</h1>" in page
    assert "6 pictures with 8 boxes in 2 classes; splits: train, eval." in page


def test_every_split_has_its_pictures(examples, tmp_path):
    page = write_inspect_page(str(examples), tmp_path / "page.html").read_text("utf-8")
    assert len(captions(page)) == page.count("data:image/jpeg;base64,") == 6


def test_no_more_pictures_than_asked_for(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "page.html", num_pictures=2).read_text("utf-8")
    assert [caption.partition("/")[0] for caption in captions(page)] == ["train", "eval"]


def test_one_split_alone_can_be_looked_at(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "page.html", split="eval").read_text("utf-8")
    assert "3 pictures with 4 boxes in 2 classes; splits: eval." in page


def test_pictures_of_one_class_can_be_asked_for_and_names_are_escaped(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "page.html", class_name="<b>dog</b>").read_text("utf-8")
    assert captions(page) == ["train/train_dog", "eval/eval_dog"]
    assert "samples that hold &lt;b&gt;dog&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_folder_as_output_gets_a_page(examples, tmp_path):
    page = write_inspect_page(examples, tmp_path / "new" / "folder")
    assert page == tmp_path / "new" / "folder" / "inspect.html"
    assert page.is_file()


def test_a_file_that_is_no_page_is_not_overwritten(examples, tmp_path):
    (tmp_path / "notes.txt").write_text("keep")
    with pytest.raises(InputError, match=r"notes\.txt: a file that is no page is there"):
        write_inspect_page(examples, tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "keep"


def test_a_page_is_written_again(examples, tmp_path):
    (tmp_path / "page.html").write_text("old")
    assert "blood cells" in write_inspect_page(examples, tmp_path / "page.html").read_text("utf-8")


def test_a_folder_called_like_a_page_is_refused(examples, tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(InputError, match=r"page\.html: a folder is there"):
        write_inspect_page(examples, tmp_path / "page.html")


def test_a_page_below_a_file_is_refused(examples, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the page cannot be written"):
        write_inspect_page(examples, tmp_path / "file" / "page.html")


def test_gzip_files_are_read(examples, tmp_path, make_example):
    path = examples / "Split-eval" / "data_tfrecord-00001-of-00002.gz"
    with tf.io.TFRecordWriter(str(path), options="GZIP") as writer:
        writer.write(make_example([BOX], name="zipped"))
    page = write_inspect_page(examples, tmp_path / "page.html", split="eval").read_text("utf-8")
    assert "eval/zipped" in captions(page)


def test_a_damaged_file_is_named_and_the_rest_shown(examples, tmp_path):
    path = examples / "Split-eval" / "data_tfrecord-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-5])
    page = write_inspect_page(examples, tmp_path / "page.html").read_text("utf-8")
    assert "eval/data_tfrecord-00000-of-00001 is damaged" in page
    assert "5 pictures" in page


def test_a_split_without_records_is_no_error(examples, tmp_path):
    (examples / "Split-test").mkdir()
    assert "splits: train, eval, test." in write_inspect_page(examples, tmp_path / "p.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "no split 'dev', it has: eval, train"),
        ({"class_name": "zebra"}, "class: got 'zebra', allowed: cat, <b>dog</b>"),
        ({"num_pictures": 0}, "got 0, allowed: 1 to 200"),
    ],
)
def test_what_is_not_there_is_refused(examples, tmp_path, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        write_inspect_page(examples, tmp_path / "page.html", **options)


def test_a_folder_without_examples_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no Split-\* folder"):
        write_inspect_page(tmp_path, tmp_path / "page.html")


def test_it_does_without_tfx():
    code = "import detloom.components.dataset_validator.inspect_page, sys; sys.exit('tfx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
