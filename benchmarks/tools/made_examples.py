"""Generate examples of many images for the validator, whose pixels do not matter, and perceptual hashes of images."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

IMAGE_SIDE, NUM_PICTURES = 32, 512  # each record has one of these pictures, so that most are near-duplicates
CLASSES = ("cat", "dog", "owl")
OBJECTS_EACH = 3
RECORDS_PER_SHARD = 5000
HashKind = Literal["random", "equal", "clustered", "templates"]
NUM_SPLITS = 3
CLUSTER_BITS = 4  # largest distance from the centre; all are one group
NUM_TEMPLATES = 20


def write_examples(folder: Path, num_records: int) -> Path:
    """Write records in the format of DetectionExampleGen, nine tenths into the split `train`, and return the folder."""
    from tools.made_records import write_records

    from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

    folder.mkdir(parents=True, exist_ok=True)
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(CLASSES))
    pictures, first = _make_pictures(), 0
    for split, count in (("train", num_records - num_records // 10), ("eval", num_records // 10)):
        (folder / f"Split-{split}").mkdir()
        num_shards = -(-count // RECORDS_PER_SHARD)
        for shard in range(num_shards):
            numbers = range(first + shard, first + count, num_shards)
            path = folder / f"Split-{split}/data_tfrecord-{shard:05}-of-{num_shards:05}"
            write_records(path, _make_records(numbers, pictures))
        first += count
    return folder


def validate_made(examples: Path, output: Path) -> str:
    """Validate the examples as `detloom validate` does, in this process, and return the verdict."""
    from detloom.components.dataset_validator.validate import validate_examples

    return str(validate_examples(examples, output)["verdict"])


def _make_pictures() -> list[bytes]:
    from PIL import Image

    random, pictures = np.random.default_rng(0), []
    for _ in range(NUM_PICTURES):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)).save(buffer, format="JPEG")
        pictures.append(buffer.getvalue())
    return pictures


def _make_records(numbers: range, pictures: list[bytes]) -> Iterator[bytes]:
    import tensorflow as tf
    from tools.made_records import make_boxes

    from detloom.schemas.contracts import example_keys as keys

    for number in numbers:
        random = np.random.default_rng(number)
        feature = (example := tf.train.Example()).features.feature
        feature[keys.IMAGE_ENCODED].bytes_list.value.append(pictures[number % len(pictures)])
        feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(f"images/{number:09}.jpg".encode())
        for key in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH):
            feature[key].int64_list.value.append(IMAGE_SIDE)
        for key, values in zip(keys.BOX_KEYS_YXYX, make_boxes(random, OBJECTS_EACH, 0.1).T, strict=True):
            feature[key].float_list.value.extend(values)
        feature[keys.CLASS_ID].int64_list.value.extend(random.integers(1, len(CLASSES) + 1, OBJECTS_EACH))
        yield bytes(example.SerializeToString())


def make_hashes(kind: HashKind, count: int) -> npt.NDArray[np.uint64]:
    """Return uint64 [count].

    Args:
        kind: "random" has no near-duplicates; "equal" are images with one hash, such as black frames with text;
            "clustered" are up to `CLUSTER_BITS` from one centre; "templates" around `NUM_TEMPLATES` centres.
    """
    random = np.random.default_rng(0)
    if kind == "random":
        return random.integers(0, 2**64, count, dtype=np.uint64)
    centres = random.integers(0, 2**64, NUM_TEMPLATES if kind == "templates" else 1, dtype=np.uint64)
    hashes: npt.NDArray[np.uint64] = centres[random.integers(0, len(centres), count)]
    for _ in range(0 if kind == "equal" else CLUSTER_BITS):
        hashes = hashes ^ (np.uint64(1) << random.integers(0, 64, count).astype(np.uint64))
    return hashes


def search_near_duplicates(kind: HashKind, count: int) -> int:
    """Search near-duplicates among `count` hashes as DatasetValidator does, and return the number of groups."""
    from detloom.components.similarity.near_duplicates import find_near_duplicates

    split_indices_N = np.arange(count) % NUM_SPLITS
    return find_near_duplicates(make_hashes(kind, count), split_indices_N, max_distance=5, train_index=0).num_groups
