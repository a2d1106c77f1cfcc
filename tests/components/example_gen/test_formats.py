"""Which format a folder holds, and that a worker imports no more than that format's reader."""

import subprocess
import sys
from pathlib import Path

import pytest

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import ReaderSettings
from detloom.schemas.errors import InputError

KITTI_LINE = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
FOLDERS = {
    "coco": {"annotations/train.json": '{"images": [], "annotations": [], "categories": []}', "images/a.jpg": ""},
    "voc": {"Annotations/a.xml": "<annotation></annotation>", "JPEGImages/a.jpg": ""},
    "yolo": {"data.yaml": "names: [cat]\ntrain: images", "images/a.jpg": "", "labels/a.txt": "0 0.5 0.5 0.5 0.5"},
    "open_images": {"boxes.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\na,/m/1,0,1,0,1\n", "images/a.jpg": ""},
    "kitti": {"label_2/a.txt": KITTI_LINE, "image_2/a.png": ""},
    "labelme": {"a.json": '{"shapes": [], "imagePath": "a.jpg", "imageHeight": 1, "imageWidth": 1}', "a.jpg": ""},
    "cvat": {"annotations.xml": "<annotations></annotations>", "images/a.jpg": ""},
    "tfrecord": {"train.tfrecord-00000-of-00001": ""},
    "images": {"a.jpg": "", "b/c.png": ""},
}
VARIANTS = {
    "coco": {"train/_annotations.coco.json": '{"images": [], "annotations": [], "categories": []}', "train/a.jpg": ""},
    "voc": {"train/a.xml": "<annotation>\n</annotation>", "train/a.jpg": ""},
    "yolo": {"images/train/a.jpg": "", "labels/train/a.txt": "0 0.5 0.5 0.5 0.5"},
    "kitti": {"labels/a.txt": KITTI_LINE, "images/a.png": ""},
    "cvat": {"task 7.xml": "<annotations></annotations>"},
    "tfrecord": {"Split-train/data_tfrecord-00000-of-00001.gz": ""},
}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return DataFolder(str(folder))


def test_there_is_a_folder_of_every_format_here():
    assert tuple(FOLDERS) == formats.FORMATS


@pytest.mark.parametrize(("name", "files"), [*FOLDERS.items(), *VARIANTS.items()])
def test_a_folder_of_one_format_is_that_format(tmp_path, name, files):
    found, evidence = formats.detect_format(write(tmp_path, files))
    assert found == name
    assert evidence.sentence


def test_two_labelled_formats_are_a_question(tmp_path):
    folder = write(tmp_path, {**FOLDERS["voc"], **FOLDERS["coco"]})
    with pytest.raises(InputError, match=r"\(coco: .*train\.json; voc: Annotations/a\.xml.*\); choose by --format"):
        formats.detect_format(folder)


def test_a_folder_of_nothing_is_told_what_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"no format is recognised; looked for coco: a JSON file.*images: image files"):
        formats.detect_format(write(tmp_path, {"notes.txt": "x"}))


def test_a_folder_that_is_not_there_is_told_so(tmp_path):
    with pytest.raises(InputError, match="nowhere: there is no such folder"):
        formats.detect_format(DataFolder(str(tmp_path / "nowhere")))


def test_an_unknown_format_names_those_there_are(tmp_path):
    with pytest.raises(InputError, match="got 'pascal', allowed: auto, coco, voc"):
        formats.list_chunks("pascal", DataFolder(str(tmp_path)), "train", "", ReaderSettings())


def test_chunks_are_listed_and_read_by_the_reader_of_the_format(tmp_path):
    folder = write(tmp_path, FOLDERS["voc"])
    (chunk,) = formats.list_chunks("voc", folder, "train", "", ReaderSettings())
    (record,) = formats.read_chunk("voc", folder, chunk, ReaderSettings())
    assert record.record_key == "a"


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_reader_refuses_an_empty_folder_with_its_name(tmp_path, name):
    folder = DataFolder(str(tmp_path))
    with pytest.raises(InputError, match=str(tmp_path)):
        list(formats.list_chunks(name, folder, "train", "", ReaderSettings()))
    assert formats.find_evidence(name, folder) is None


def test_asking_every_reader_imports_neither_tfx_nor_beam_nor_tensorflow(tmp_path):
    folder = write(tmp_path, FOLDERS["voc"])
    code = (
        "import sys; from detloom.components.example_gen.data_folder import DataFolder;"
        "from detloom.components.example_gen.sources import formats;"
        "assert not any(m.startswith('detloom.components.example_gen.sources.coco') for m in sys.modules);"
        f"formats.detect_format(DataFolder({folder.root!r}));"
        "print({'tfx', 'apache_beam', 'tensorflow'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
