"""Damage specific to one format or in shared files; memory does not depend on the content.

test_hostile_folder.py tests files, paths, images and XML.
"""

import io
import json
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

pytestmark = pytest.mark.reliability("hostile input", "ingest")

WRITTEN = "written"
MAX_GROWTH_MB = 250  # growth of resident memory over a harmless run, for any data


def encode_image(seed: int = 0) -> bytes:
    """Return 60x40 px of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG")
    return buffer.getvalue()


def png_of_size(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def box(reason: Reason) -> str:
    return f"box:{reason.value}"


# --- the other formats: what only they can hold ----------------------------------------------------------------------

Item = dict[str, Any]
WRONG_TYPE = Reason.UNREADABLE_ANNOTATION
# By image id: changes of the image's entry, and of the annotation of its second box.
COCO: dict[str, tuple[Item, Item, Reason | str]] = {
    "file_name_number": ({"file_name": 7}, {}, WRONG_TYPE),
    "file_name_missing": ({"file_name": None}, {}, WRONG_TYPE),
    "file_name_list": ({"file_name": ["a"]}, {}, WRONG_TYPE),
    "file_name_with_nul": ({"file_name": "a\0.jpg"}, {}, WRONG_TYPE),
    "file_name_half_a_pair": ({"file_name": "\ud800.jpg"}, {}, WRONG_TYPE),
    "file_name_outside": ({"file_name": "../../etc/passwd"}, {}, Reason.PATH_OUTSIDE),
    "height_text": ({"height": "tall"}, {}, WRONG_TYPE),
    "height_negative": ({"height": -40}, {}, WRONG_TYPE),
    "height_nan": ({"height": float("nan")}, {}, WRONG_TYPE),
    "height_other": ({"height": 41, "width": 60}, {}, Reason.WRONG_DIMENSIONS),
    "bbox_missing": ({}, {"bbox": None}, box(WRONG_TYPE)),
    "bbox_text": ({}, {"bbox": "1,2,3,4"}, box(WRONG_TYPE)),
    "bbox_of_three": ({}, {"bbox": [1, 2, 3]}, box(WRONG_TYPE)),
    "bbox_of_lists": ({}, {"bbox": [[1], [2], [3], [4]]}, box(WRONG_TYPE)),
    "bbox_of_truth": ({}, {"bbox": [True, 1, 2, 3]}, box(WRONG_TYPE)),
    "bbox_nan": ({}, {"bbox": [float("nan"), 1, 2, 3]}, box(Reason.BOX_NOT_FINITE)),
    "bbox_beyond_float": ({}, {"bbox": [1, 1, 10**400, 3]}, box(Reason.BOX_NOT_FINITE)),
    "bbox_negative_size": ({}, {"bbox": [30, 20, -5, 5]}, box(Reason.BOX_INVERTED)),
    "category_unknown": ({}, {"category_id": 99}, box(Reason.UNKNOWN_CLASS)),
    "category_text": ({}, {"category_id": "cat"}, box(Reason.UNKNOWN_CLASS)),
    "category_list": ({}, {"category_id": [1]}, box(Reason.UNKNOWN_CLASS)),
    "area_text": ({}, {"area": "big"}, WRITTEN),
}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory, hostile_ingest) -> Any:
    folder = tmp_path_factory.mktemp("hostile") / "coco"
    (folder / "images").mkdir(parents=True)
    images: list[Any] = [{"id": "twice", "file_name": "t1.jpg"}, {"id": "twice", "file_name": "t2.jpg"}]
    images += [None, 7, "text", [], {}, {"id": True, "file_name": "x.jpg"}, {"id": 1.5, "file_name": "x.jpg"}]
    annotations: list[Any] = [None, 7, [], {}, {"image_id": ["a"], "category_id": 1, "bbox": [1, 1, 2, 2]}]
    annotations += [{"image_id": "nowhere", "category_id": 1, "bbox": [1, 1, 2, 2]}]
    for number, (name, (image, annotation, _)) in enumerate(COCO.items()):
        (folder / f"images/{name}.jpg").write_bytes(encode_image(number))
        images.append({"id": name, "file_name": f"{name}.jpg", **image})
        for change in ({}, annotation):
            annotations.append({"image_id": name, "category_id": 1, "bbox": [1, 1, 9, 9], **change})
    data = {"annotations": annotations, "images": images, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "all.json").write_text(json.dumps(data))
    return hostile_ingest(folder, "coco", splits={"train": "all.json"}, unknown_class="reject")


@pytest.mark.parametrize("name", COCO)
def test_a_damaged_coco_record_is_rejected_with_its_reason(name, coco):
    assert coco.of(name) == COCO[name][2]


def test_invalid_coco_entries_are_counted(coco):
    assert coco.found["twice"] == ["record:duplicate_id"] * 2
    assert coco.report["num_in"] == len(COCO) + 2 + 7
    assert coco.report["num_in"] == coco.report["num_written"] + coco.report["num_quarantined"]
    assert coco.report["rejects_by_reason"]["unknown_image"] == 6  # five are not annotations


# By image name: its label file, and the expected outcome.
YOLO: dict[str, tuple[bytes, Reason | str]] = {
    "text": (b"cat is here\n", box(WRONG_TYPE)),
    "three_numbers": (b"0 0.5 0.5\n", box(WRONG_TYPE)),
    "nan": (b"0 nan 0.5 0.2 0.2\n", box(Reason.BOX_NOT_FINITE)),
    "huge": (b"0 0.5 0.5 1e300 0.2\n", box(Reason.BOX_OUTSIDE)),
    "centre_huge": (b"0 1e300 0.5 0.2 0.2\n", box(Reason.BOX_WITHOUT_AREA)),
    "pixels": (b"0 30 20 10 10\n", box(Reason.BOX_OUTSIDE)),
    "negative_size": (b"0 0.5 0.5 -0.2 0.2\n", box(Reason.BOX_INVERTED)),
    "class_beyond": (b"9 0.5 0.5 0.2 0.2\n", box(Reason.UNKNOWN_CLASS)),
    "class_negative": (b"-1 0.5 0.5 0.2 0.2\n", box(Reason.UNKNOWN_CLASS)),
    "class_half": (b"0.5 0.5 0.5 0.2 0.2\n", box(Reason.UNKNOWN_CLASS)),
    "not_utf8": (b"0 0.5 0.5 0.2 0.2\n\xff\xfe\n", WRONG_TYPE),
    "boxes_10_001": (b"0 0.5 0.5 0.2 0.2\n" * 10_001, Reason.TOO_MANY_BOXES),
}


def test_damaged_yolo_labels_are_rejected_with_their_reasons(tmp_path, hostile_ingest):
    folder = tmp_path / "yolo"
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number, (name, (label, _)) in enumerate(YOLO.items()):
        (folder / f"images/{name}.jpg").write_bytes(encode_image(number))
        (folder / f"labels/{name}.txt").write_bytes(label)
    (folder / "data.yaml").write_text("names: [cat]\ntrain: images\n")
    outcome = hostile_ingest(folder, "yolo", splits={"train": "train"}, unknown_class="reject")
    found = {key.split("/")[-1]: set(reasons) for key, reasons in outcome.found.items()}
    assert found == {
        name: {f"record:{reason.value}"} if isinstance(reason, Reason) else {reason, WRITTEN}
        for name, (_, reason) in YOLO.items()
    }


def frame(path: Path, payload: bytes) -> bytes:
    """Return a records file with one record."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(payload)
    return path.read_bytes()


def test_damaged_records_files_are_counted(tmp_path, hostile_ingest):
    example = tf.train.Example()
    example.features.feature["image/encoded"].bytes_list.value.append(encode_image())
    example.features.feature["image/source_id"].bytes_list.value.append(b"good")
    good = frame(tmp_path / "one", example.SerializeToString())
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(
        good + frame(tmp_path / "one", b"\xff not an example") + frame(tmp_path / "one", b"")
    )
    (folder / "b.tfrecord").write_bytes(frame(tmp_path / "one", b"x" * 50)[:-20])
    (folder / "c.tfrecord").write_bytes(struct.pack("<QI", 2**60, 0) + b"z" * 40)
    (folder / "label_map.pbtxt").write_text("item { id: 1 name: 'cat' }")
    outcome = hostile_ingest(folder, "tfrecord")
    # a.tfrecord has three; in each of the others, the unreadable rest counts as one
    assert outcome.report["num_in"] == 5
    assert outcome.report["num_written"] == 1
    assert outcome.found.pop("good") == [WRITTEN]
    assert all(reason.startswith("record:") for reasons in outcome.found.values() for reason in reasons)


# --- damage to a file that all depends on: one sentence that names it ------------------------------------------------

NESTED = b'{"images": ' + b"[" * 100_000
WHOLE: dict[str, tuple[str, str, bytes]] = {
    "coco_cut": ("coco", "all.json", b'{"images": [{"id": 1, "file_'),
    "coco_empty": ("coco", "all.json", b""),
    "coco_list": ("coco", "all.json", b"[]"),
    "coco_text": ("coco", "all.json", b"images"),
    "coco_images_number": ("coco", "all.json", b'{"images": 7, "annotations": [], "categories": []}'),
    "coco_nested": ("coco", "all.json", NESTED),
    "coco_not_utf8": (
        "coco",
        "all.json",
        b'{"images": [{"file_name": "\xff\xfe"}], "annotations": [], "categories": []}',
    ),
    "coco_category_twice": (
        "coco",
        "all.json",
        b'{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
    ),
    "yolo_aliases": ("yolo", "data.yaml", b"a: &a [x, x]\nnames: [*a, *a]\ntrain: images\n"),
    "yolo_names_number": ("yolo", "data.yaml", b"names: 7\ntrain: images\n"),
    "yolo_outside": ("yolo", "data.yaml", b"names: [cat]\ntrain: ../../etc\n"),
    "yolo_python": ("yolo", "data.yaml", b"names: !!python/object/apply:os.system ['true']\ntrain: images\n"),
    "cvat_entities": ("cvat", "annotations.xml", b'<!DOCTYPE a [<!ENTITY b "b">]><annotations>&b;</annotations>'),
    "cvat_cut": ("cvat", "annotations.xml", b"<annotations><image name='a.jpg' width='60'"),
    "cvat_video": ("cvat", "annotations.xml", b"<annotations><track id='0' label='cat'/></annotations>"),
    "open_images_no_columns": ("open_images", "boxes.csv", b"a,b\n1,2\n"),
    "records_gzip": ("tfrecord", "a.tfrecord", b"\x1f\x8b\x08\x00" + b"\0" * 40),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_annotation_file_is_named(name, tmp_path, hostile_ingest):
    data_format, path, data = WHOLE[name]
    (tmp_path / "data/images").mkdir(parents=True)
    (tmp_path / "data/images/a.jpg").write_bytes(encode_image())
    (tmp_path / "data" / path).write_bytes(data)
    source = {"yolo": "train", "tfrecord": ""}.get(data_format, path)
    with pytest.raises(InputError, match=path.split(".")[0]):
        hostile_ingest(tmp_path / "data", data_format, splits={"train": source})
    assert not (tmp_path / "data_out/rejects/report.json").exists()


# --- memory -----------------------------------------------------------------------------------------------------------

HUGE = 200 * 2**20
# A file of 200 MB in one piece: its head, the repeated part, its tail; and whether an InputError is expected.
HUGE_FILES = {
    "coco": ("all.json", b'{"categories": [], "annotations": [], "images": [{"id": 1, "file_name": "', b"a", b'"}]}'),
    "cvat": (
        "annotations.xml",
        b'<annotations><image id="0" name="',
        b"a",
        b'" width="60" height="40"/></annotations>',
    ),
    "labelme": ("a.json", b'{"shapes": [], "imagePath": "', b"a", b'"}'),
    "open_images": ("boxes.csv", b"ImageID,LabelName,XMin,XMax,YMin,YMax\n", b"a", b",cat,0,1,0,1\n"),
    "yolo": ("labels/a.txt", b"0 0.5 0.5 0.1 0.1", b"1", b"\n"),
    "kitti": ("label_2/a.txt", b"Car 0 0 0 1 1 9 9 1 1 1 1 1 1 1", b"1", b"\n"),
    "voc": ("Annotations/a.xml", b"<annotation><filename>", b"a", b"</filename></annotation>"),
}
CHILD = """
    import json, resource, sys
    from pathlib import Path
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.schemas.errors import InputError

    def peak_mb():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    results = []
    for number, (folder, data_format, source) in enumerate(json.loads(sys.argv[1])):
        params = ExampleGenParams(
            data_format=data_format, splits={"train": source}, max_reject_fraction=1.0, decode_images=True)
        out = IngestFolders(f"{folder}_out", f"{folder}_out/rejects")
        try:
            ingest(folder, params, out, lambda: beam.Pipeline(
                options=PipelineOptions(["--direct_running_mode=in_memory"])))
            error = ""
        except InputError as caught:
            error = str(caught)
        results.append((data_format, peak_mb(), error))
    print(json.dumps(results))
"""


@pytest.mark.nightly  # nine files of 200 MB in a subprocess
def test_memory_is_bounded_for_any_file_content(tmp_path):
    bomb = png_of_size(20_000, 20_000, zlib.compress(bytes(20_001 * 20_000), 9))
    jobs = []
    for name, image in (("harmless", encode_image()), ("bomb", bomb)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(encode_image(1))
        (tmp_path / name / "b.jpg").write_bytes(image)
        jobs.append((str(tmp_path / name), "images", ""))
    for data_format, (path, head, repeated, tail) in HUGE_FILES.items():
        target = tmp_path / data_format / path
        target.parent.mkdir(parents=True)
        for images in ("images", "image_2", "JPEGImages"):
            (tmp_path / data_format / images).mkdir()
            (tmp_path / data_format / images / "a.png").write_bytes(encode_image())
        with target.open("wb") as file:
            file.write(head)
            for _ in range(HUGE >> 20):
                file.write(repeated * (1 << 20))
            file.write(tail)
        source = {"coco": path, "cvat": path, "open_images": path, "yolo": "images"}.get(data_format, "")
        jobs.append((str(tmp_path / data_format), data_format, source))
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(jobs)], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr[-3000:]
    results = json.loads(child.stdout.splitlines()[-1])
    first = results[0][1]
    grown = {data_format: peak - first for data_format, peak, _ in results[1:]}
    assert max(grown.values()) < MAX_GROWTH_MB, (first, grown)
    refused = {data_format: error for data_format, _, error in results[1:]}
    assert set(refused) == {*HUGE_FILES, "images"}
    assert "all.json" in refused["coco"]
