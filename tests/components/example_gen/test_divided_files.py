"""An annotation file of many images gives the same records and bytes when it is divided into parts."""

import json
from pathlib import Path

import apache_beam as beam
import pytest

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import formats, image_groups
from detloom.components.example_gen.sources.image_groups import PartFiles
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.components.storage.storage import open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

KEYS = [f"img{number:02d}" for number in range(40)]


def write_coco(folder):
    images = [{"id": key, "file_name": f"{key}.jpg"} for key in KEYS]
    boxes = [
        {"image_id": key, "category_id": 1, "bbox": [1, 2, 3 + turn, 4]}
        for turn in range(3)
        for key in KEYS
        if key != "img07"
    ]
    strays = [{"image_id": f"no{number}", "category_id": 1, "bbox": [1, 2, 3, 4]} for number in range(5)]
    data = {
        "images": [*images, {"file_name": "x.jpg"}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [*boxes, *strays, 7],
    }
    (folder / "a.json").write_text(json.dumps(data))


def write_open_images(folder):
    rows = [f"{key},/m/01,0.1,{0.5 + turn / 10},0.1,0.5" for turn in range(3) for key in KEYS if key != "img07"]
    head = "ImageID,LabelName,XMin,XMax,YMin,YMax"
    (folder / "a.csv").write_text("\n".join([head, *rows, "img03,/m/02,0,1,0,1", "img03,short", ",/m/01,0,1,0,1"]))
    (folder / "class-descriptions-boxable.csv").write_text("/m/01,cat\n/m/03,dog\n")


WRITERS = {"coco": write_coco, "open_images": write_open_images}
SOURCES = {"coco": "a.json", "open_images": "a.csv"}


def read_all(data_format, folder, source):
    """Return the classes, and records and rejects in a fixed order, of all chunks; and the number of chunks."""
    data_folder, settings = DataFolder(str(folder)), IngestSettings()
    chunks = list(formats.list_chunks(data_format, data_folder, "train", source, settings))
    parts = PartFiles(open_storage(folder / "staging"), "parts")
    if len(chunks) > 1:
        formats.split_file(data_format, data_folder, chunks[0], settings, parts)
    items = [item for chunk in chunks for item in formats.read_chunk(data_format, data_folder, chunk, settings, parts)]
    classes = [item for item in items if isinstance(item, SourceClass)]
    return classes, sorted(repr(item) for item in items if not isinstance(item, SourceClass)), len(chunks)


@pytest.mark.parametrize("data_format", WRITERS)
def test_a_divided_file_has_the_same_records_rejects_and_classes(data_format, tmp_path, monkeypatch):
    WRITERS[data_format](tmp_path)
    classes, items, num_chunks = read_all(data_format, tmp_path, SOURCES[data_format])
    assert num_chunks == 1
    assert len(items) >= 39
    monkeypatch.setattr(image_groups, "PART_BYTES", 500)
    divided = read_all(data_format, tmp_path, SOURCES[data_format])
    assert divided[2] >= 4
    assert divided[:2] == (classes, items)


@pytest.mark.parametrize("data_format", WRITERS)
def test_every_part_gets_some_of_the_images(data_format, tmp_path, monkeypatch):
    WRITERS[data_format](tmp_path)
    monkeypatch.setattr(image_groups, "PART_BYTES", (tmp_path / SOURCES[data_format]).stat().st_size // 3)
    folder, settings = DataFolder(str(tmp_path)), IngestSettings()
    chunks = list(formats.list_chunks(data_format, folder, "train", SOURCES[data_format], settings))
    parts = PartFiles(open_storage(tmp_path / "staging"), "parts")
    formats.split_file(data_format, folder, chunks[0], settings, parts)
    counts = [sum(1 for _ in formats.read_chunk(data_format, folder, chunk, settings, parts)) for chunk in chunks]
    assert len(counts) == 3
    assert min(counts) >= 6


@pytest.mark.parametrize(
    ("data_format", "damage", "message"),
    [
        ("coco", lambda text: text[:-3], r"a\.json:1: not readable as JSON"),
        ("open_images", lambda text: text.replace("ImageID", "Image"), r"a\.csv:1: the columns ImageID are missing"),
    ],
)
def test_a_damaged_file_is_an_error_of_its_parts(data_format, damage, message, tmp_path, monkeypatch):
    WRITERS[data_format](tmp_path)
    path = Path(tmp_path / SOURCES[data_format])
    monkeypatch.setattr(image_groups, "PART_BYTES", 500)
    folder, settings = DataFolder(str(tmp_path)), IngestSettings()
    chunks = list(formats.list_chunks(data_format, folder, "train", SOURCES[data_format], settings))
    path.write_text(damage(path.read_text()))
    parts = PartFiles(open_storage(tmp_path / "staging"), "parts")
    formats.split_file(data_format, folder, chunks[0], settings, parts)
    with pytest.raises(InputError, match=message):
        list(formats.read_chunk(data_format, folder, chunks[0], settings, parts))


def test_ingestion_of_a_divided_file_writes_the_same_bytes(make_coco, run_ingest, tmp_path, monkeypatch):
    images = [{"id": number, "file_name": f"{number}.jpg", "height": 40, "width": 60} for number in range(30)]
    boxes = [{"image_id": number, "category_id": 3, "bbox": [1, 2, 3, 4], "id": number} for number in range(30)]
    folder = make_coco({"a.json": (images, boxes)})
    outputs = []
    for name, part_bytes, make_pipeline in (("whole", 2**20, None), ("divided", 300, beam.Pipeline)):
        monkeypatch.setattr(image_groups, "PART_BYTES", part_bytes)
        run_ingest(folder, tmp_path / name, make_pipeline, format="coco", splits={"train": "a.json"})
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        outputs.append([(path.relative_to(tmp_path / name), path.read_bytes()) for path in files])
    assert outputs[0] == outputs[1]
