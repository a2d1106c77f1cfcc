"""Fixtures: COCO data sets of any splits, and a scan of one."""

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detloom.pipelines.init.scan_data import DataScan


def encode_image(seed: int, size_hw: tuple[int, int] = (60, 80)) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (*size_hw, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def make_coco(tmp_path: Path) -> Callable[[Mapping[str, list[int]]], Path]:
    """Return a function that writes a COCO data set: numbers of images by file in annotations/. Equal numbers give
    images with equal bytes."""

    def make(numbers_by_file: Mapping[str, list[int]]) -> Path:
        folder = tmp_path / "Blood Cells"
        (folder / "annotations").mkdir(parents=True)
        (folder / "images").mkdir()
        for name, numbers in numbers_by_file.items():
            images, annotations = [], []
            for number in numbers:
                file_name = f"{name}_{number}.png"
                (folder / "images" / file_name).write_bytes(encode_image(number))
                images.append({"id": number, "file_name": file_name, "height": 60, "width": 80})
                for k in range(2):
                    box = {"id": 2 * number + k, "image_id": number, "category_id": 1 + k, "bbox": [8, 6, 16, 12]}
                    annotations.append(box)
            content = {
                "images": images,
                "annotations": annotations,
                "categories": [{"id": 1, "name": "cell"}, {"id": 2, "name": "platelet"}],
            }
            (folder / f"annotations/{name}.json").write_text(json.dumps(content))
        return folder

    return make


@pytest.fixture
def make_scan() -> Callable[..., DataScan]:
    """Return a function that makes a scan of 100 images of 480 x 640 pixels without splits; each has one object."""

    def make(box_sizes_hw: tuple[float, float] = (0.2, 0.2), num_images: int = 100) -> DataScan:
        random = np.random.default_rng(0)
        begin = random.uniform(0, 1 - np.array(box_sizes_hw), (num_images, 2))
        return DataScan(
            root="/data/cells",
            data_format="coco",
            evidence="a COCO file",
            splits={},
            num_images=Counter({"": num_images}),
            boxes_by_class=Counter({"cell": num_images}),
            image_sizes=[(480, 640)] * num_images,
            boxes=np.concatenate([begin, begin + box_sizes_hw], axis=1),
            max_boxes=1,
        )

    return make
