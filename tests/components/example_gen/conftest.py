"""Tiny data sets in VOC and COCO form, made in the test's folder."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.rejects import Reason, read_rejects

VocObject = tuple[str, float, float, float, float]  # class, xmin, ymin, xmax, ymax in pixels


def encode_image(image_hw: tuple[int, int] = (40, 60), image_format: str = "JPEG", seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*image_hw, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=image_format)
    return buffer.getvalue()


def format_voc(filename: str, image_hw: tuple[int, int], objects: Sequence[VocObject]) -> str:
    items = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><truncated>1</truncated><bndbox><xmin>{xmin}</xmin>"
        f"<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
        for name, xmin, ymin, xmax, ymax in objects
    )
    size = f"<size><width>{image_hw[1]}</width><height>{image_hw[0]}</height></size>"
    return f"<annotation><filename>{filename}</filename>{size}{items}</annotation>"


@pytest.fixture
def make_voc(tmp_path: Path) -> Callable[..., Path]:
    """A VOC folder: image stems by list name, each image 60x40 px with one 'cat'; `objects` overrides by stem."""

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
                (folder / f"JPEGImages/{stem}.jpg").write_bytes(encode_image(seed=sum(map(ord, stem))))
                found = (objects or {}).get(stem, [("cat", 6, 4, 30, 24)])
                text = format_voc(f"{stem}.jpg", (40, 60), found)
                (folder / f"Annotations/{stem}.xml").write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def make_coco(tmp_path: Path) -> Callable[..., Path]:
    """A COCO folder: annotation file name to (images, annotations); images get written as 60x40 px JPEG."""

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
                target.write_bytes(encode_image())
        return folder

    return make


@pytest.fixture
def run_ingest() -> Callable[..., dict[str, Any]]:
    """Ingest `folder` into `out` with Beam's test pipeline; `changes` are parameters other than VOC's train and val."""
    from apache_beam.testing import test_pipeline

    def run(
        folder: Path, out: Path, make_pipeline: Callable[[], Any] = test_pipeline.TestPipeline, **changes: Any
    ) -> dict[str, Any]:
        params = ExampleGenParams(**{"data_format": "voc", "splits": {"train": "train", "eval": "val"}, **changes})
        return ingest(folder, params, IngestFolders(str(out), str(out / "rejects")), make_pipeline)

    return run


@pytest.fixture
def read_features() -> Callable[[Path], list[Any]]:
    """The features of all examples of a split folder, in the order of the shards."""
    import tensorflow as tf

    def read(folder: Path) -> list[Any]:
        records = tf.data.TFRecordDataset([str(path) for path in sorted(folder.iterdir())]).as_numpy_iterator()
        return [tf.train.Example.FromString(record).features.feature for record in records]

    return read


@dataclass
class HostileOutcome:
    """Of ingesting a damaged folder.

    Attributes:
        found: by record key, "record:<reason>" or "box:<reason>" of each reject, and "written".
    """

    report: dict[str, Any]
    found: dict[str, list[str]]

    def of(self, key: str) -> Reason | str | set[str]:
        """A Reason is that of the record; "box:<reason>" that of a box of a written record, "written" that of none.

        Anything else is all that was found.
        """
        found = set(self.found.get(key, ()))
        match sorted(found):
            case [only] if only.startswith("record:"):
                return Reason(only.removeprefix("record:"))
            case ["written" as one] | [one, "written"] if not one.startswith("record:"):
                return one
        return found


@pytest.fixture(scope="session")
def hostile_ingest() -> Callable[..., HostileOutcome]:
    """Ingest `folder` with a budget of 100 % into `<folder>_out`; keywords go to ExampleGenParams."""
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.options.pipeline_options import PipelineOptions

    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.params import ExampleGenParams

    def run(folder: Path, data_format: str, **params: Any) -> HostileOutcome:
        params = {"splits": {"train": ""}, "max_reject_fraction": 1.0, "max_image_bytes": 1 << 20, **params}
        out = folder.parent / f"{folder.name}_out"
        report = ingest(
            folder,
            ExampleGenParams(data_format=data_format, **params),
            IngestFolders(str(out), str(out / "rejects")),
            lambda: beam.Pipeline(options=PipelineOptions(["--direct_running_mode=in_memory"])),
        )
        found: dict[str, list[str]] = {}
        for reject in read_rejects(out / "rejects"):
            found.setdefault(reject.record_key, []).append(f"{reject.scope}:{reject.reason.value}")
        for shard in out.glob("Split-*/data_tfrecord-*"):
            for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
                feature = tf.train.Example.FromString(record).features.feature
                key = feature["image/source_id"].bytes_list.value[0].decode()
                found.setdefault(key, []).append("written")
        return HostileOutcome(report, found)

    return run
