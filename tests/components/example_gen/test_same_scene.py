"""One scene in every format: all readers return the same records, and ingestion writes the same bytes."""

import csv
import hashlib
import io
import json
import re
import sys
import tempfile
import unicodedata
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelled_data import format_voc, make_record, write_files
from PIL import Image, ImageDraw

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.read_annotations import list_chunks, read_annotations, read_outcome
from detloom.components.example_gen.sources import formats
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import read_label_map

WIDTH, HEIGHT = 64, 32  # powers of two: pixels and relative coordinates are both exact, also in float32
# class, xmin, ymin, xmax, ymax in pixels, by image
SCENE = {
    "1": [("cat", 8, 4, 24, 20), ("dog", 32, 8, 64, 32)],
    "2": [("dog", 0, 0, 16, 16), ("dog", 1, 2, 3, 5), ("cat", 33, 17, 63, 31)],
    "3": [],
}
CLASSES = ("cat", "dog")
SOURCES = {
    "coco": "annotations/train.json",
    "voc": "train",
    "yolo": "train",
    "open_images": "boxes.csv",
    "kitti": "",
    "labelme": "labels",
    "cvat": "annotations.xml",
    "tfrecord": "",
    "csv": "train_labels.csv",
    "via": "via_region_data.json",
    "label_studio": "project.json",
    "createml": "_annotations.createml.json",
    "supervisely": "",
    "images": "images",
}
LABELLED = [name for name in SOURCES if name != "images"]


def write_coco(folder):
    size = {"width": WIDTH, "height": HEIGHT}
    images = [{"id": image_id, "file_name": f"{key}.jpg", **size} for image_id, key in enumerate(SCENE, 1)]
    annotations = [
        {"image_id": image_id, "category_id": CLASSES.index(name) + 1, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for image_id, objects in enumerate(SCENE.values(), 1)
        for name, x1, y1, x2, y2 in objects
    ]
    for number, annotation in enumerate(annotations):
        annotation |= {"id": number, "area": annotation["bbox"][2] * annotation["bbox"][3], "iscrowd": 0}
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    data = {"images": images, "annotations": annotations, "categories": categories}
    write_files(folder, {"annotations/train.json": json.dumps(data)})


def write_voc(folder):
    for key, objects in SCENE.items():
        text = format_voc(f"{key}.jpg", objects, (HEIGHT, WIDTH)).replace("<truncated>1", "<truncated>0")
        write_files(folder, {f"Annotations/{key}.xml": text})
    write_files(folder, {"ImageSets/Main/train.txt": "\n".join(SCENE)})


def write_yolo(folder):
    for key, objects in SCENE.items():
        lines = [
            f"{CLASSES.index(name)} {(x1 + x2) / 2 / WIDTH} {(y1 + y2) / 2 / HEIGHT} {(x2 - x1) / WIDTH} "
            f"{(y2 - y1) / HEIGHT}\n"
            for name, x1, y1, x2, y2 in objects
        ]
        write_files(folder, {f"labels/{key}.txt": "".join(lines)})
    write_files(folder, {"data.yaml": f"train: images\nnc: {len(CLASSES)}\nnames: {list(CLASSES)}\n"})


def write_open_images(folder):
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax", "IsGroupOf"])
    for key, objects in SCENE.items():
        for name, x1, y1, x2, y2 in objects:
            box = (x1 / WIDTH, x2 / WIDTH, y1 / HEIGHT, y2 / HEIGHT)
            rows.writerow([key, "xclick", f"/m/{name}", 1, *box, 0])
    write_files(folder, {"boxes.csv": file.getvalue()})
    write_files(folder, {"class-descriptions-boxable.csv": "".join(f"/m/{name},{name}\n" for name in CLASSES)})


def write_kitti(folder):
    for key, objects in SCENE.items():
        lines = [
            f"{name} 0.00 0 -1.58 {x1}.00 {y1}.00 {x2}.00 {y2}.00 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
            for name, x1, y1, x2, y2 in objects
        ]
        write_files(folder, {f"labels/{key}.txt": "".join(lines)})


def write_labelme(folder):
    for key, objects in SCENE.items():
        shapes = [
            {"label": name, "shape_type": "rectangle", "points": [[x1, y1], [x2, y2]], "flags": {}}
            for name, x1, y1, x2, y2 in objects
        ]
        size = {"imageWidth": WIDTH, "imageHeight": HEIGHT}
        data = {"version": "5.0", "shapes": shapes, "imagePath": f"..\\images\\{key}.jpg", "imageData": None, **size}
        write_files(folder, {f"labels/{key}.json": json.dumps(data)})


def write_cvat(folder):
    images = ""
    for number, (key, objects) in enumerate(SCENE.items()):
        boxes = "".join(
            f'<box label="{name}" occluded="0" xtl="{x1}.00" ytl="{y1}.00" xbr="{x2}.00" ybr="{y2}.00" z_order="0"/>'
            for name, x1, y1, x2, y2 in objects
        )
        images += f'<image id="{number}" name="{key}.jpg" width="{WIDTH}" height="{HEIGHT}">{boxes}</image>\n'
    labels = "".join(f"<label><name>{name}</name></label>" for name in CLASSES)
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    write_files(folder, {"annotations.xml": f"<annotations><version>1.1</version>{meta}{images}</annotations>"})


def write_tfrecord(folder):
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as writer:
        for key, objects in SCENE.items():
            record = make_record(
                key,
                f"images/{key}.jpg",
                boxes=[(y1 / HEIGHT, x1 / WIDTH, y2 / HEIGHT, x2 / WIDTH) for _, x1, y1, x2, y2 in objects],
                class_ids=[CLASSES.index(name) + 1 for name, *_ in objects],
                image=(folder / f"images/{key}.jpg").read_bytes(),
                IMAGE_HEIGHT=[HEIGHT],
                IMAGE_WIDTH=[WIDTH],
                CLASS_TEXT=[name.encode() for name, *_ in objects],
            )
            writer.write(record)


def write_csv(folder):
    rows, empty = ["filename,width,height,class,xmin,ymin,xmax,ymax"], [key for key in SCENE if not SCENE[key]]
    for key, objects in SCENE.items():
        rows += [f"{key}.jpg,{WIDTH},{HEIGHT},{name},{x1},{y1},{x2},{y2}" for name, x1, y1, x2, y2 in objects]
    write_files(folder, {"train_labels.csv": "\n".join([*rows, f"{empty[0]}.jpg,{WIDTH},{HEIGHT},,,,,"])})


def write_via(folder):
    images = {}
    for key, objects in SCENE.items():
        regions = [
            {
                "shape_attributes": {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1},
                "region_attributes": {"label": name},
            }
            for name, x1, y1, x2, y2 in objects
        ]
        images[f"{key}.jpg99"] = {"filename": f"{key}.jpg", "size": 99, "regions": regions, "file_attributes": {}}
    data = {"_via_settings": {"ui": {}}, "_via_img_metadata": images, "_via_attributes": {"region": {}}}
    write_files(folder, {"via_region_data.json": json.dumps(data)})


def write_label_studio(folder):
    tasks = []
    for key, objects in SCENE.items():
        result = []
        for name, x1, y1, x2, y2 in objects:
            percent = {"x": x1 / WIDTH, "y": y1 / HEIGHT, "width": (x2 - x1) / WIDTH, "height": (y2 - y1) / HEIGHT}
            value = {side: 100 * part for side, part in percent.items()} | {"rotation": 0, "rectanglelabels": [name]}
            size = {"original_width": WIDTH, "original_height": HEIGHT, "image_rotation": 0}
            result.append({"value": value, "type": "rectanglelabels", "to_name": "image", **size})
        tasks.append({"data": {"image": f"/data/local-files/?d={key}.jpg"}, "annotations": [{"result": result}]})
    write_files(folder, {"project.json": json.dumps(tasks)})


def write_createml(folder):
    images = []
    for key, objects in SCENE.items():
        boxes = [
            {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}
            for _, x1, y1, x2, y2 in objects
        ]
        annotations = [{"label": name, "coordinates": box} for (name, *_), box in zip(objects, boxes, strict=True)]
        images.append({"image": f"{key}.jpg", "annotations": annotations})
    write_files(folder, {"_annotations.createml.json": json.dumps(images)})


def write_supervisely(folder):
    for key, objects in SCENE.items():
        items = [
            {
                "classTitle": name,
                "geometryType": "rectangle",
                "points": {"exterior": [[x1, y1], [x2, y2]], "interior": []},
            }
            for name, x1, y1, x2, y2 in objects
        ]
        data = {"description": "", "tags": [], "size": {"height": HEIGHT, "width": WIDTH}, "objects": items}
        write_files(folder, {f"ann/{key}.jpg.json": json.dumps(data)})


WRITERS = {
    "coco": write_coco,
    "voc": write_voc,
    "yolo": write_yolo,
    "open_images": write_open_images,
    "kitti": write_kitti,
    "labelme": write_labelme,
    "cvat": write_cvat,
    "tfrecord": write_tfrecord,
    "csv": write_csv,
    "via": write_via,
    "label_studio": write_label_studio,
    "createml": write_createml,
    "supervisely": write_supervisely,
}


def write_scene(folder, data_format):
    (folder / "images").mkdir(parents=True)
    for number, (key, objects) in enumerate(SCENE.items()):
        image = Image.new("RGB", (WIDTH, HEIGHT), (90, 90, 90 + number))
        for name, x1, y1, x2, y2 in objects:
            ImageDraw.Draw(image).rectangle((x1, y1, x2 - 1, y2 - 1), (200, 40 if name == "cat" else 160, 60))
        image.save(folder / f"images/{key}.jpg")
    if data_format != "images":
        WRITERS[data_format](folder)
    return folder


@pytest.fixture
def make_scene(tmp_path):
    """Create a folder with the scene in one format, the images as images/1.jpg etc."""
    return lambda data_format: write_scene(tmp_path / data_format, data_format)


def test_the_scene_exists_in_every_format():
    assert list(SOURCES) == list(formats.FORMATS)


@pytest.mark.parametrize("data_format", SOURCES)
def test_every_scene_is_detected_as_its_format(make_scene, data_format):
    assert formats.detect_format(DataFolder(str(make_scene(data_format))))[0] == data_format


def test_ingestion_writes_the_same_bytes_for_every_format(make_scene, tmp_path, run_ingest):
    shards, examples = {}, {}
    for data_format in LABELLED:
        out = tmp_path / f"{data_format}-out"
        report = run_ingest(make_scene(data_format), out, format=data_format, splits={"train": SOURCES[data_format]})
        assert (report["num_quarantined"], report["num_boxes_rejected"], report["repairs"]) == (0, 0, {})
        assert read_label_map(out / "label_map.pbtxt").names == CLASSES
        files = sorted((out / "Split-train").iterdir())
        shards[data_format] = [(path.name, path.read_bytes()) for path in files]
        examples[data_format] = list(tf.data.TFRecordDataset([str(path) for path in files]).as_numpy_iterator())
    expected = examples["voc"]
    assert len(expected) == 3
    # Open Images' CSV does not contain the image without boxes.
    del shards["open_images"]
    assert sorted(examples["open_images"]) == sorted(each for each in expected if b"images/3.jpg" not in each)
    assert [data_format for data_format, files in shards.items() if files != shards["voc"]] == []


def test_images_without_labels_are_written_without_boxes(make_scene, tmp_path, run_ingest, read_features):
    out = tmp_path / "out"
    report = run_ingest(make_scene("images"), out, format="images", splits={"predict": "images"})
    assert (report["num_written"], report["num_boxes_in"]) == (3, 0)
    features = read_features(out / "Split-predict")
    assert sorted(feature[keys.IMAGE_FILENAME].bytes_list.value[0] for feature in features) == [
        b"images/1.jpg",
        b"images/2.jpg",
        b"images/3.jpg",
    ]


# Where the image {key} or its label file is moved, and what is written for its name; all are found again.
IMAGE_MOVES = ("images/{key}.JPG", "images/{key}.jpg.jpg", "Images/{key}.jpg", "images/a/b/{key}.jpg")
LABEL_MOVES = ("{folder}/a/b/{name}", "{folder}/{key}.jpg{suffix}", "{folder}/{key}{SUFFIX}")
WRITTEN = (
    "C:\\me\\pictures\\{key}.jpg",
    "/home/me/{key}.jpg",
    "..\\..\\x\\{key}.jpg",
    "{quoted}.jpg",
    "{decomposed}.jpg",
    "{key}.JPG",
    "{key}",
)
STEMS = ("{}", "é{}", "a b {}", "a%20b{}", "10%{}", "ß ﬁ {}", "x.{}", "-{}", "{}_mask")  # of the names of images
LOSSES = ("image", "label")  # what is deleted
ONLY_COUNTED = {("yolo", "Images/{key}.jpg"), ("supervisely", "{folder}/a/b/{name}")}  # the folder is not read
DAMAGES = [
    (kind, how) for kind, ways in (("image", IMAGE_MOVES), ("label", LABEL_MOVES), ("name", WRITTEN)) for how in ways
]


def damage(folder, kind, how, key):
    """Delete, move or rename the image or its label file, or change the image's name in all texts."""
    image = folder / f"images/{key}.jpg"
    named = (key + ".txt", key + ".xml", key + ".json", key + ".jpg.json")
    labels = [path for path in folder.glob("*/*") if path.name in named and path.parent.name != "images"]
    if kind == "delete":
        for path in [image] if how == "image" else labels:
            path.unlink()
    elif kind == "name":
        quoted = "".join(f"%{byte:02X}" for byte in key.encode())
        new = how.format(key=key, quoted=quoted, decomposed=unicodedata.normalize("NFD", key))
        for path in folder.rglob("*.*"):
            if path.suffix in (".json", ".xml", ".csv", ".txt"):
                written, old = (json.dumps(name)[1:-1] if path.suffix == ".json" else name for name in (new, key))
                name = re.compile(rf"(?<![\w.\\-])(\.\.\\+images\\+)?{re.escape(old)}\.jpg")
                path.write_text(written.join(name.sub("\0", path.read_text()).split("\0")))
    else:
        for path in [image] if kind == "image" else labels:
            names = {
                "folder": path.parent.name,
                "name": path.name,
                "suffix": path.suffix,
                "SUFFIX": path.suffix.upper(),
            }
            target = folder / how.format(key=key, **names)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


def check_nothing_is_lost(run_ingest, read_features, data_format, kind, how, stem, key):
    scene, key = {stem.format(each): objects for each, objects in SCENE.items()}, stem.format(key)
    with tempfile.TemporaryDirectory() as name, mock.patch(f"{__name__}.SCENE", scene):
        folder, out = write_scene(Path(name, "data"), data_format), Path(name, "out")
        keys_by_hash = {hashlib.sha256(path.read_bytes()).hexdigest(): path.stem for path in folder.glob("images/*")}
        damage(folder, kind, how, key)
        changes = {"max_reject_fraction": 1.0, "max_unlisted_fraction": 1.0, "allow_no_objects": True}
        splits = {"train": SOURCES[data_format]}
        report = run_ingest(folder, out, format=data_format, splits=splits, **changes)
        num_known = report["num_boxes_written"] + report["num_boxes_rejected"] + report["num_boxes_quarantined"]
        num_known += sum(report["left_out"].values())
        num_boxes = sum(map(len, SCENE.values()))
        assert num_known >= num_boxes or report["num_unlisted_images"] > 0, report
        if kind != "delete" and (data_format, how) not in ONLY_COUNTED:
            assert report["num_boxes_written"] == num_boxes, report
        for features in read_features(out / "Split-train"):
            digest = features[keys.IMAGE_SHA256].bytes_list.value[0].decode()
            corners = zip(*(features[side].float_list.value for side in keys.BOX_KEYS_YXYX), strict=True)
            boxes = [(x1 * WIDTH, y1 * HEIGHT, x2 * WIDTH, y2 * HEIGHT) for y1, x1, y2, x2 in corners]
            assert boxes in ([], [tuple(box) for _, *box in SCENE[keys_by_hash[digest]]])


ANY_DAMAGE = st.sampled_from([*DAMAGES, *(("delete", how) for how in LOSSES)])
RANDOM = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=20, derandomize=True, **RANDOM)
@given(
    data_format=st.sampled_from(LABELLED),
    kind_and_how=ANY_DAMAGE,
    stem=st.sampled_from(STEMS),
    key=st.sampled_from("12"),
)
def test_no_box_is_lost_by_a_random_damage(run_ingest, read_features, data_format, kind_and_how, stem, key):
    check_nothing_is_lost(run_ingest, read_features, data_format, *kind_and_how, stem, key)


@pytest.mark.nightly
@pytest.mark.parametrize("data_format", LABELLED)
@settings(max_examples=500, **RANDOM)
@given(kind_and_how=ANY_DAMAGE, stem=st.sampled_from(STEMS), key=st.sampled_from("12"))
def test_no_box_is_lost_by_many_random_damages(run_ingest, read_features, data_format, kind_and_how, stem, key):
    check_nothing_is_lost(run_ingest, read_features, data_format, *kind_and_how, stem, key)


def count_calls(function):
    """Return how many calls the function makes, of Python's functions and of others."""
    num_calls = 0

    def count(frame, event, argument):
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return num_calls


@pytest.mark.parametrize("data_format", LABELLED)
def test_the_work_of_reading_grows_linearly(data_format, tmp_path):
    work = []
    for number in (25, 100):
        classes = tuple(f"c{index}" for index in range(number))
        scene = {"empty": [], **{name: [(name, 8, 4, 24, 20)] for name in classes}}
        with mock.patch(f"{__name__}.SCENE", scene), mock.patch(f"{__name__}.CLASSES", classes):
            folder = write_scene(tmp_path / f"{number}", data_format)
        sources = {"train": SOURCES[data_format]}
        job = IngestJob(
            params=ExampleGenParams(format=data_format, splits=sources),
            data_format=data_format,
            root=str(folder),
            subfolders=("",),
            sources=sources,
            examples=f"{tmp_path}/{number}-out",
            output_splits=("train",),
        )

        def read_all(job=job):
            for index in range(list_chunks(job)[0]):
                read_annotations(index, job)

        work.append(count_calls(read_all))
        assert sum(read_outcome(job, 0).boxes_by_class.values()) > number / 2  # the rest is in further chunks
    assert work[1] < 5 * work[0]
