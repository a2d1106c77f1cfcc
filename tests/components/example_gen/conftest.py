"""Create small data sets in VOC and COCO format in the test's folder."""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from labelled_data import encode_image, format_voc, run_steps

from detloom.components.example_gen import ingest as ingest_module
from detloom.components.example_gen.ingest import IngestFolders
from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.contracts.label_map import LabelMap, write_label_map

VocObject = tuple[str, float, float, float, float]  # class, xmin, ymin, xmax, ymax in pixels


@pytest.fixture
def make_voc(tmp_path: Path) -> Callable[..., Path]:
    """Create a VOC folder: image stems by list; each image is 60x40 px with one 'cat'; `objects` overrides by stem."""

    def make(
        lists: dict[str, Sequence[str]],
        objects: dict[str, Sequence[VocObject]] | None = None,
        name: str = "voc",
    ) -> Path:
        folder = tmp_path / name
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for list_name, stems in lists.items():
            (folder / f"ImageSets/Main/{list_name}.txt").write_text("\n".join(stems) + "\n", encoding="utf-8")
            for stem in stems:
                (folder / f"JPEGImages/{stem}.jpg").write_bytes(encode_image(seed=zlib.crc32(stem.encode())))
                found = (objects or {}).get(stem, [("cat", 6, 4, 30, 24)])
                text = format_voc(f"{stem}.jpg", found, (40, 60))
                (folder / f"Annotations/{stem}.xml").write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def make_coco(tmp_path: Path) -> Callable[..., Path]:
    """Create a COCO folder: annotation file name to (images, annotations); images are 60x40 px JPEG files."""

    def make(
        files: dict[str, tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]],
        categories: Sequence[dict[str, Any]] = ({"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}),
    ) -> Path:
        folder = tmp_path / "coco"
        for file_name, (images, annotations) in files.items():
            path = folder / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = {"images": list(images), "annotations": list(annotations), "categories": list(categories)}
            path.write_text(json.dumps(data), encoding="utf-8")
            for image in images:
                target = folder / "images" / str(image["file_name"])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(encode_image(seed=zlib.crc32(target.name.encode())))
        return folder

    return make


@pytest.fixture
def without_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "_run", run_steps)


@pytest.fixture
def run_ingest() -> Callable[..., dict[str, Any]]:
    """Ingest `folder` into `out`, without Beam by default; `changes` are other parameters than VOC's train and val."""

    def run(folder: Path, out: Path, make_pipeline: Callable[[], Any] | None = None, **changes: Any) -> dict[str, Any]:
        params = ExampleGenParams(**{"format": "voc", "splits": {"train": "train", "eval": "val"}, **changes})
        folders = IngestFolders(str(out), str(out / "rejects"))
        if make_pipeline:
            return ingest_module.ingest(folder, params, folders, make_pipeline)
        with mock.patch.object(ingest_module, "_run", run_steps):
            return ingest_module.ingest(folder, params, folders, dict)

    return run


@pytest.fixture
def read_features() -> Callable[[Path], list[Any]]:
    """Return the features of all examples of a split folder, in shard order."""
    import tensorflow as tf

    def read(folder: Path) -> list[Any]:
        records = tf.data.TFRecordDataset([str(path) for path in sorted(folder.iterdir())]).as_numpy_iterator()
        return [tf.train.Example.FromString(record).features.feature for record in records]

    return read


@pytest.fixture
def examples(tmp_path: Path, write_records: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a folder of examples: one shard for each split, and the classes 3 and 7."""

    def make(**records_by_split: list[bytes]) -> Path:
        folder = tmp_path / "examples"
        for split, records in records_by_split.items():
            write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
        write_label_map(folder / "label_map.pbtxt", LabelMap(((3, "cat"), (7, "dog: big"))))
        return folder

    return make
