"""Fixtures of the tests on a Flink cluster; all of them skip without one. `make test-flink` starts and stops it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parent))

from flink_access import VARIABLE, Cluster

NUM_IMAGES = 40
NUM_COPIES = int(os.environ.get("FLINK_TEST_COPIES", "75"))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    file = os.environ.get(VARIABLE)
    if not file:
        pytest.skip("needs a Flink cluster, which `make test-flink` starts")
    return Cluster(Path(file))


@pytest.fixture(autouse=True)
def complete_cluster(cluster: Cluster) -> None:
    cluster.wait_until_complete()


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a VOC data set: that of the variable BCCD_DIR, or images of noise."""
    if given := os.environ.get("BCCD_DIR"):
        return Path(given)
    folder = tmp_path_factory.mktemp("data")
    names = [f"image_{number:03d}" for number in range(NUM_IMAGES)]
    write_lists(folder, {"train": names[: NUM_IMAGES // 2], "val": names[NUM_IMAGES // 2 : -8], "test": names[-8:]})
    for number, name in enumerate(names):
        noise = Image.effect_noise((320, 240), 30 + number)
        noise.convert("RGB").save(folder / f"JPEGImages/{name}.jpg")
        box = f"<xmin>10</xmin><ymin>20</ymin><xmax>{60 + number}</xmax><ymax>120</ymax>"
        objects = "".join(f"<object><name>{each}</name><bndbox>{box}</bndbox></object>" for each in ("RBC", "WBC"))
        size = "<size><width>320</width><height>240</height><depth>3</depth></size>"
        text = f"<annotation><filename>{name}.jpg</filename>{size}{objects}</annotation>"
        (folder / f"Annotations/{name}.xml").write_text(text)
    return folder


def write_lists(folder: Path, names: dict[str, Sequence[str]]) -> None:
    for subfolder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
    for split, listed in names.items():
        (folder / f"ImageSets/Main/{split}.txt").write_text("".join(f"{name}\n" for name in listed))


@pytest.fixture(scope="session")
def large_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set with `FLINK_TEST_COPIES` copies of each image, as hard links to one copy."""
    folder = tmp_path_factory.mktemp("large")
    splits = {split: (data_folder / f"ImageSets/Main/{split}.txt").read_text().split() for split in ("train", "val")}
    copied = {split: [f"c{c:03d}_{n}" for c in range(NUM_COPIES) for n in names] for split, names in splits.items()}
    write_lists(folder, copied)
    for split, names in copied.items():
        for number, name in enumerate(names):
            original = splits[split][number % len(splits[split])]
            for subfolder, suffix in (("JPEGImages", ".jpg"), ("Annotations", ".xml")):
                target = folder / subfolder / f"{name}{suffix}"
                if number < len(splits[split]):
                    target.write_bytes((data_folder / subfolder / f"{original}{suffix}").read_bytes())
                else:
                    target.hardlink_to(folder / subfolder / f"c000_{original}{suffix}")
    return folder
