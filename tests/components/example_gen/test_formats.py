"""Detection of a folder's format."""

import subprocess
import sys
from pathlib import Path

import pytest
from labelled_data import write_files

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.contracts.rejects import Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

KITTI_LINE = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
YOLO_LINE = "0 0.5 0.5 0.5 0.25\n"
VOC_XML = (
    '<annotation verified="yes"><filename>a.jpg</filename><object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin>'
    "<xmax>3</xmax><ymax>4</ymax></bndbox></object></annotation>"
)
CVAT_XML = (
    '<?xml version="1.0"?>\n<annotations version="1.1"><image name="a.jpg" width="9" height="9">'
    '<box label="cat" xtl="1" ytl="2" xbr="3" ybr="4"/></image></annotations>'
)


def in_each(parts, files):
    return {f"{part}/{name}": text for part in parts for name, text in files.items()}


# Folders as other tools write them: format, files, and split: number of objects.
LAYOUTS = {
    "labelImg VOC": ("voc", {"Annotations/a.xml": VOC_XML, "JPEGImages/a.jpg": ""}, {"": 1}),
    "Kaggle VOC": ("voc", {"annotations/a.xml": VOC_XML, "images/a.jpg": ""}, {"": 1}),
    "Oxford pets": ("voc", {"annotations/xmls/a.xml": VOC_XML, "images/a.jpg": ""}, {"": 1}),
    "VOC in images/train": (
        "voc",
        in_each(("images/train", "images/test"), {"a.xml": VOC_XML, "a.jpg": ""}),
        {"train": 1, "test": 1},
    ),
    "VOC by split": (
        "voc",
        {"train/annotations/a.xml": VOC_XML, "train/images/a.jpg": "", "val/annotations/a.xml": VOC_XML},
        {"train": 1, "val": 1},
    ),
    "VOC of two folders": ("voc", {"cats/a.xml": VOC_XML, "cats/a.jpg": ""}, {"": 1}),
    "labelImg YOLO": ("yolo", {"i.jpg": "", "i.txt": YOLO_LINE, "classes.txt": "cat"}, {"": 1}),
    "labelImg YOLO by split": (
        "yolo",
        {"train/i.jpg": "", "train/i.txt": YOLO_LINE, "train/classes.txt": "cat", "val/i.jpg": "", "val/i.txt": "\n"},
        {"train": 1, "val": 0},
    ),
    "labelImg YOLO in images": ("yolo", {"images/i.jpg": "", "images/i.txt": YOLO_LINE}, {"": 1}),
    "Roboflow Darknet": (
        "yolo",
        in_each(("train", "valid"), {"i.jpg": "", "i.txt": YOLO_LINE, "_darknet.labels": "cat"}),
        {"train": 1, "val": 1},
    ),
    "YOLO by split": (
        "yolo",
        in_each(("train", "val"), {"images/i.jpg": "", "labels/i.txt": YOLO_LINE}),
        {"train": 1, "val": 1},
    ),
    "CVAT YOLO": (
        "yolo",
        {
            "obj.names": "cat\n",
            "obj.data": "classes = 1\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n",
            "train.txt": "data/obj_train_data/i.jpg\n",
            "obj_train_data/i.jpg": "",
            "obj_train_data/i.txt": YOLO_LINE,
        },
        {"train": 1},
    ),
    "Darknet VOC": ("yolo", {"JPEGImages/i.jpg": "", "labels/i.txt": YOLO_LINE}, {"": 1}),
    "YOLO after a blank label": (
        "yolo",
        {"images/a.jpg": "", "labels/a.txt": "\n", "images/b.jpg": "", "labels/b.txt": YOLO_LINE},
        {"": 1},
    ),
    "YOLO with a byte order mark": ("yolo", {"images/a.jpg": "", "labels/a.txt": "\ufeff" + YOLO_LINE}, {"": 1}),
    "KITTI after a blank label": (
        "kitti",
        {"image_2/b.png": "", "label_2/a.txt": "\n", "label_2/b.txt": "\r\n" + KITTI_LINE},
        {"": 1},
    ),
    "CVAT of two jobs": (
        "cvat",
        {"job1/annotations.xml": CVAT_XML, "job2/annotations.xml": CVAT_XML.replace("a.jpg", "b.jpg")}
        | {"job1/images/a.jpg": "", "job2/images/b.jpg": ""},
        {"": 2},
    ),
    "CVAT with a version": ("cvat", {"annotations.xml": CVAT_XML, "images/a.jpg": ""}, {"": 1}),
}


def write(folder, files):
    return DataFolder(str(write_files(folder, files)))


COCO_FILE = '{"images": [], "annotations": [], "categories": []}'
CSV_FILE = "ImageID,LabelName,XMin,XMax,YMin,YMax\n"
CSV_BOXES = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
CVAT_IMAGE = "<image name='a.jpg' subset='{}'/>"
CVAT_FILE = f"<annotations version='1.1'>{CVAT_IMAGE}{CVAT_IMAGE}</annotations>"
RECORDS = "pet_train.record-00000-of-00002", "pet_train.record-00001-of-00002", "pet_val.record-00000-of-00001"
# Folders by format: files, and the splits that are detected; None: it is not detected as this format.
DETECTED = [
    (
        "coco",
        {f"annotations/{name}.json": COCO_FILE for name in ("instances_train2017", "person_keypoints_train2017")}
        | {"annotations/captions_val2017.json": COCO_FILE, "annotations/instances_val2017.json": COCO_FILE},
        {"train": "annotations/instances_train2017.json", "val": "annotations/instances_val2017.json"},
    ),
    (
        "coco",
        in_each(("train", "valid"), {"_annotations.coco.json": COCO_FILE}),
        {"train": "train/_annotations.coco.json", "val": "valid/_annotations.coco.json"},
    ),
    ("coco", {"labels.json": COCO_FILE}, {}),
    *[
        ("coco", {"a.json": text}, None)
        for text in ('{"shapes": [], "imagePath": "a.jpg"}', "[]", "", '{"name": "package"}', "\0\0")
    ],
    ("voc", {"train/a.xml": "<annotation/>", "valid/a.xml": "<annotation/>"}, {"train": "train", "val": "valid"}),
    ("voc", {"Annotations/_.xml": "<other/>", "Annotations/a.xml": "<annotation verified='yes'></annotation>"}, {}),
    ("voc", {"annotations.xml": "<annotations></annotations>"}, None),
    (
        "yolo",
        {"data.yaml": "names: [a]\ntrain: images/a\nval: images/b\ntest: images/none", "images/a/1.jpg": ""}
        | {"images/b/1.jpg": ""},
        {"train": "train", "val": "val"},
    ),
    ("yolo", {"data.yaml": "names: ["}, {}),
    ("yolo", {"labels/train/a.txt": YOLO_LINE, "images/train/a.jpg": ""}, {"train": "images/train"}),
    ("yolo", {"labels/train/a.txt": KITTI_LINE, "images/train/a.jpg": ""}, None),
    (
        "yolo",
        {f"labels/{part}/a.txt": YOLO_LINE for part in ("train 2", "val,x")}
        | {f"images/{part}/a.jpg": "" for part in ("train 2", "val,x")},
        {"train": "images/train 2", "val": "images/val,x"},
    ),
    (
        "yolo",
        {"train/images/a.jpg": "", "train/labels/a.txt": YOLO_LINE, "test/images/a.jpg": ""},
        {"train": "train/images", "test": "test/images"},
    ),
    (
        "open_images",
        {f"annotations/{part}-annotations-bbox.csv": CSV_FILE for part in ("train", "validation")},
        {"train": "annotations/train-annotations-bbox.csv", "val": "annotations/validation-annotations-bbox.csv"},
    ),
    ("open_images", {"a.csv": "filename,width,height,class,xmin\n", "b.csv": "\0"}, None),
    (
        "kitti",
        {f"ImageSets/{name}.txt": "a" for name in ("train", "val", "trainval")}
        | {"training/label_2/a.txt": KITTI_LINE, "training/image_2/a.png": ""},
        {"train": "ImageSets/train.txt", "val": "ImageSets/val.txt"},
    ),
    (
        "kitti",
        in_each(("train", "val"), {"labels/a.txt": KITTI_LINE, "images/a.png": ""}),
        {"train": "train", "val": "val"},
    ),
    ("kitti", {"labels/a.txt": "0 " + "0.5 " * 14, "images/a.png": ""}, None),
    *[("labelme", {"a.json": text}, None) for text in ('{"images": [], "annotations": []}', "[]", "")],
    (
        "cvat",
        {"annotations.xml": CVAT_FILE.format("Train", "Validation")},
        {"train": "annotations.xml#Train", "val": "annotations.xml#Validation"},
    ),
    ("cvat", {"annotations.xml": CVAT_FILE.format("Train", "")}, {}),
    ("cvat", {"job.xml": CVAT_FILE.format("", "a")}, {}),
    ("cvat", {"job.xml": CVAT_FILE, "job2.xml": CVAT_FILE}, {}),
    (
        "cvat",
        in_each(("train", "val"), {"annotations.xml": CVAT_FILE, "other.xml": "<a/>"}),
        {"train": "train/annotations.xml", "val": "val/annotations.xml"},
    ),
    ("cvat", {"a.xml": "<annotation></annotation>"}, None),
    (
        "tfrecord",
        dict.fromkeys(RECORDS, ""),
        {"train": "pet_train.record-?????-of-00002", "val": "pet_val.record-?????-of-00001"},
    ),
    (
        "tfrecord",
        {f"Split-{split}/data_tfrecord-00000-of-00001": "" for split in ("eval", "train")},
        {"eval": "Split-eval", "train": "Split-train"},
    ),
    ("tfrecord", {"train/a.tfrecords": "", "test/a.tfrecords": ""}, {"test": "test", "train": "train"}),
    ("tfrecord", {"Split-/data_tfrecord-00000-of-00001": ""}, {"all": "Split-"}),
    ("tfrecord", {"Split-a b/x.tfrecord": "", "Split-c,d/x.tfrecord": ""}, {"a_b": "Split-a b", "c_d": "Split-c,d"}),
    ("tfrecord", {"data.record": ""}, {}),
    (
        "csv",
        {"data/train_labels.csv": CSV_BOXES, "data/test_labels.csv": CSV_BOXES},
        {"test": "data/test_labels.csv", "train": "data/train_labels.csv"},
    ),
    ("csv", {"a.csv": CSV_BOXES, "train.csv": CSV_BOXES}, {}),
    ("csv", {"a.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax", "b.csv": "name,age,a.jpg", "c.csv": ""}, None),
    (
        "via",
        in_each(("train", "val"), {"via_region_data.json": '{"a": {"filename": "a", "regions": []}}'}),
        {
            "train": "train/via_region_data.json",
            "val": "val/via_region_data.json",
        },
    ),
    *[("via", {"a.json": text}, None) for text in ('{"shapes": []}', "[]", "", '{"images": []}')],
    ("label_studio", {"a.json": '[{"annotations": [{"result": []}]}]'}, {}),
    ("label_studio", {"a.json": '[{"image": "a.jpg", "annotations": []}]'}, None),
    ("createml", {"_annotations.createml.json": '[{"image": "a.jpg", "annotations": []}]'}, {}),
    ("createml", {"a.json": '[{"image": 1}]'}, None),
    (
        "supervisely",
        in_each(("train", "test"), {"ann/a.jpg.json": '{"objects": []}'}),
        {"test": "test", "train": "train"},
    ),
    ("supervisely", {"meta.json": "{}", "ds0/ann/a.jpg.json": '{"objects": []}'}, {}),
    ("supervisely", {"ann/a.json": '{"shapes": []}'}, None),
    ("tfrecord", {"a.jpg": "", "recorder.txt": "", "records.txt": ""}, None),
    (
        "images",
        {"train/a.jpg": "", "valid/b.png": "", "other/c.jpg": "", "test/readme.txt": ""},
        {"train": "train", "val": "valid"},
    ),
    ("images", {"a.txt": ""}, None),
]


@pytest.mark.parametrize(("name", "files", "splits"), DETECTED)
def test_the_splits_of_a_folder_are_detected(name, files, splits, tmp_path):
    folder = write(tmp_path, files)
    evidence = formats.FORMATS[name].detect(folder)
    assert (evidence.splits if evidence else None) == splits
    if evidence:
        assert formats.detect_format(folder) == (name, evidence)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_of_other_tools_are_detected_and_read(tmp_path, layout):
    name, files, expected = LAYOUTS[layout]
    folder = write(tmp_path, files)
    found, evidence = formats.detect_format(folder)
    assert found == name
    num_objects = {}
    for split, source in (evidence.splits or {"": ""}).items():
        for chunk in formats.list_chunks(name, folder, split, source, IngestSettings()):
            items = list(formats.FORMATS[name].read_chunk(folder, chunk, IngestSettings()))
            assert not any(isinstance(item, Reject) for item in items)
            objects = [item for record in items if isinstance(record, SourceRecord) for item in record.objects]
            num_objects[split] = num_objects.get(split, 0) + len(objects)
    assert num_objects == expected


@pytest.mark.parametrize(
    "label",
    ["via_region_data.json", "boxes.xml", "train/a.csv", "a.txt", "my_labels/x.txt", "a.JSONL", "b/c.txt"],
)
def test_images_beside_possible_labels_are_not_detected_as_unlabelled(tmp_path, label):
    folder = write(tmp_path, {"a.jpg": "", "b/c.jpg": "", label: "x"})
    message = rf"a\.jpg, and {label}, .*--format images"
    with pytest.raises(InputError, match=message):
        formats.detect_format(folder)


@pytest.mark.parametrize(
    ("path", "text", "meaning"),
    [
        ("a.json", '{"project": {}, "file": {"1": {"fname": "a.jpg"}}}', "VIA 3"),
        ("a.ndjson", '{"data_row": {"id": "x"}}', "Labelbox"),
        ("a.json", '{"item": {\n"name": "a.jpg",\n"slots": []}}', "V7"),
        ("a.json", '[{"name": "a.jpg", "labels": [{"category": "car", "box2d": {"x1": 1}}]}]', "BDD100K"),
        ("a.json", '{"asset": {"format": "jpg"}, "regions": 1}', "VoTT"),
        ("a.manifest", '{"source-ref": "s3://b/a.jpg"}', "SageMaker"),
        ("metadata.jsonl", '{"file_name": "a.jpg", "objects": {"bbox": []}}', "Hugging Face"),
        ("a.csv", "TRAIN,gs://b/a.jpg,cat,0.1,0.1,,,0.3,0.3,,", "AutoML"),
        ("a.csv", "image_id,width,height,bbox,source\n", "column `bbox`"),
        ("Label/a.txt", "Alarm clock 1.0 2.0 3.0 4.0\n", "OIDv4"),
        ("labelTxt/a.txt", "imagesource:x\n1 2 3 4 5 6 7 8 car 0\n", "DOTA"),
        ("a.mat", "MATLAB", "MATLAB"),
    ],
)
def test_files_of_other_tools_are_named_with_a_way_to_convert_them(tmp_path, path, text, meaning):
    folder = write(tmp_path, {"images/a.jpg": "", path: text})
    with pytest.raises(InputError, match=rf"{path}.*looks like .*{meaning}"):
        formats.detect_format(folder)


def test_a_text_file_without_an_image_of_its_name_is_not_a_label(tmp_path):
    folder = write(tmp_path, {"a.jpg": "", "b/a.png": "", "README.txt": "x", "b/licence.txt": "x", "LICENSE": ""})
    assert formats.detect_format(folder)[0] == "images"


def test_a_file_instead_of_a_folder_is_an_error(tmp_path):
    folder = write(tmp_path, {"coco.json": "{}"})
    file = DataFolder(f"{folder.root}/coco.json")
    message = rf"coco\.json: .*file.*{folder.root}\.$"
    with pytest.raises(InputError, match=message):
        formats.detect_format(file)
    with pytest.raises(InputError, match=message):
        formats.list_chunks("coco", file, "train", "", IngestSettings())


def test_two_labelled_formats_are_an_error(tmp_path):
    folder = write(tmp_path, {"Annotations/a.xml": VOC_XML, "annotations/train.json": COCO_FILE})
    with pytest.raises(InputError, match=r"\(coco: .*train\.json; voc: Annotations/a\.xml.*\).*--format"):
        formats.detect_format(folder)


@pytest.mark.parametrize(("file", "other"), [("annotations/a.xml", "voc"), ("data/train.record", "tfrecord")])
def test_csv_files_made_from_voc_or_for_records_are_named_and_not_read(tmp_path, file, other):
    folder = write(tmp_path, {file: VOC_XML, "data/train_labels.csv": CSV_BOXES})
    name, evidence = formats.detect_format(folder)
    assert name == other
    assert evidence.sentence.endswith("not read: boxes in data/train_labels.csv")


def test_an_unrecognised_folder_is_an_error_listing_the_formats(tmp_path):
    with pytest.raises(InputError, match=r"coco: .*JSON.*images: "):
        formats.detect_format(write(tmp_path, {"notes.txt": "x"}))


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: .*not exist"):
        formats.detect_format(DataFolder(str(tmp_path / "nowhere")))


@pytest.mark.parametrize("name", formats.FORMATS)
def test_an_empty_folder_is_an_error_naming_it_in_every_reader(tmp_path, name):
    folder = DataFolder(str(tmp_path))
    with pytest.raises(InputError, match=str(tmp_path)):
        list(formats.list_chunks(name, folder, "train", "", IngestSettings()))
    assert formats.FORMATS[name].detect(folder) is None


def test_detection_and_workers_do_not_import_tfx_beam_or_tensorflow(tmp_path):
    folder = write(tmp_path, {"Annotations/a.xml": VOC_XML})
    code = (
        "import sys; from detloom.components.example_gen.data_folder import DataFolder;"
        "from detloom.components.example_gen import hash_images, plan, read_annotations, write_shard;"
        "from detloom.components.example_gen.sources import formats;"
        f"formats.detect_format(DataFolder({folder.root!r}));"
        "print({'tfx', 'apache_beam', 'tensorflow'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("coco", "a.json", r"a\.json: .*missing"),
        ("voc", "trian", r"ImageSets/Main/trian\.txt.*split 'train'.*\['train'\]"),
        ("yolo", "tset", r"got 'tset' for split 'train', allowed: .*\(existing: none\)"),
        ("open_images", "a.csv", r"a\.csv: .*missing"),
        ("kitti", "val", r"ImageSets/val\.txt: .*split 'train'.*\['a'\]"),
        ("labelme", "val", "val: no JSON file"),
        ("cvat", "b.xml", r"b\.xml: .*split 'train'"),
        ("cvat", "../b.xml", r"\.\./b\.xml"),
        ("tfrecord", "*.nothing", "split 'train'"),
        ("tfrecord", "../x.tfrecord", "split 'train'"),
        ("images", "../more", r"\.\./more: no image"),
    ],
)
def test_a_missing_source_is_an_error_naming_it(tmp_path, name, source, message):
    write(tmp_path, {"b.xml": "", "x.tfrecord": "", "more/a.jpg": ""})
    folder = write(tmp_path / "data", {"ImageSets/a.txt": "a", "ImageSets/Main/train.txt": "a"})
    with pytest.raises(InputError, match=message):
        list(formats.list_chunks(name, folder, "train", source, IngestSettings()))


def test_a_folder_above_data_sets_is_refused_with_their_names_and_formats(tmp_path):
    files = {
        "x/My/data.yaml": "names: [a]",
        "x/My/images/a.jpg": b"x",
        "x/b/all.json": '{"images": [], "annotations": []}',
    }
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"contains x/My \(yolo\), x/b \(coco\)"):
        formats.detect_format(DataFolder(str(tmp_path)))


def test_labels_in_utf_16_are_named_as_such(tmp_path):
    write_files(tmp_path, {"a.jpg": b"x", "all.json": '{"images": []}'.encode("utf-16")})
    with pytest.raises(InputError, match=r"all\.json, .*UTF-16; convert"):
        formats.detect_format(DataFolder(str(tmp_path)))
