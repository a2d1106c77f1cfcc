"""Fixtures of the command tests: a VOC data set, a folder of examples, and the installed packages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from labelled_data import encode_image, format_voc, run_steps


@pytest.fixture
def make_voc(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a VOC data set; each image has a cat and, if its name starts with d, a dog."""

    def make(**lists: list[str]) -> Path:
        folder = tmp_path / "voc"
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / part).mkdir(parents=True)
        for list_name, stems in lists.items():
            (folder / f"ImageSets/Main/{list_name}.txt").write_text("\n".join(stems))
            for stem in stems:
                (folder / f"JPEGImages/{stem}.jpg").write_bytes(encode_image(sum(map(ord, stem))))
                names = ["cat", "dog"] if stem.startswith("d") else ["cat"]
                text = format_voc(f"{stem}.jpg", [(name, 7, 3, 31, 23) for name in names])
                (folder / f"Annotations/{stem}.xml").write_text(text)
        return folder

    return make


@pytest.fixture
def without_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an ingestion run its steps in sequence, because a Beam job takes seconds to start."""
    monkeypatch.setattr("detloom.components.example_gen.ingest._run", run_steps)


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Return a folder with a split `a` of one image with two boxes, and write `run.yaml` with a limit of one box."""
    folder = tmp_path / "crowded"
    (folder / "Split-a").mkdir(parents=True)
    example = tf.train.Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_image(1))
    feature["image/format"].bytes_list.value.append(b"jpeg")
    feature["image/height"].int64_list.value.append(40)
    feature["image/width"].int64_list.value.append(60)
    for side, values in (("ymin", (0.1, 0.5)), ("xmin", (0.1, 0.5)), ("ymax", (0.4, 0.9)), ("xmax", (0.4, 0.9))):
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/label"].int64_list.value.extend((1, 1))
    with tf.io.TFRecordWriter(str(folder / "Split-a/data_tfrecord-00000-of-00001")) as writer:
        writer.write(example.SerializeToString())
    (folder / "label_map.pbtxt").write_text("item {\n  id: 1\n  name: 'cat'\n}\n")
    (tmp_path / "run.yaml").write_text(
        "name: small\ndata: {format: voc, path: nowhere, splits: {train: a, eval: b, test: c}}\n"
        "train_input: {max_number_of_boxes: 1}\nchecks: {crowded_images: {severity: fail, threshold: 0.0}}\n"
    )
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run file with further sections, and a compiled job in `job` beside it."""

    def write(name: str = "run.yaml", job: str = "", **sections: Any) -> Path:
        data = {"path": "embedded:digits", "split_by_ratio": {}}
        train = {"batch_size": 4, "num_steps": 8}
        run = {"name": "cells", "push_to": "gs://models/cells", "data": data, "train": train, **sections}
        (tmp_path / name).write_text(json.dumps(run))
        if job:
            (tmp_path / "job").write_text(job)
        return tmp_path / name

    return write
