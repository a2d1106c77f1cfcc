"""Name the parts of an examples folder: a folder of shards for each split, and the label map.

TFX fixes the names. It also names the folders of other artifacts with one part per split, such as anomalies, like this.
Imports neither TFX nor TensorFlow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE
from detloom.schemas.errors import InputError

SPLIT_PREFIX = "Split-"
SHARD_PREFIX = "data_tfrecord-"


@dataclass(frozen=True)
class ExamplesFolder:
    """The examples that `detloom ingest`, DetectionExampleGen or TFX's ImportExampleGen wrote.

    Attributes:
        root: folder or address.
    """

    root: str | Path

    def split_folder(self, split: str) -> str:
        return f"{self.root}/{SPLIT_PREFIX}{split}"

    def list_shards(self, split: str) -> list[str]:
        return list_shards(self.split_folder(split))

    def list_splits(self) -> list[str]:
        """Return the names of the splits, sorted; empty if the folder does not exist."""
        return split_names(entry.path for entry in open_storage(self.root).list_entries() if entry.is_folder)

    def check_splits(self, *required: str) -> list[str]:
        """Return the names of the splits, sorted.

        Raises:
            InputError: there is no split, or a required one is missing.
        """
        splits = self.list_splits()
        if not splits:
            exists = open_storage(self.root).is_folder("")
            problem = f"contains no folder {SPLIT_PREFIX}NAME" if exists else "the folder does not exist"
            raise InputError(f"{self.root}: {problem}; give a folder that `detloom ingest` or a pipeline wrote.")
        for split in required:
            if split not in splits:
                raise InputError(f"{self.root}: got the split {split!r}, allowed: {', '.join(splits)}.")
        return splits

    def check_shards(self, split: str) -> list[str]:
        """Return the shards of a split.

        Raises:
            InputError: the split does not exist, or has no shards.
        """
        self.check_splits(split)
        shards = self.list_shards(split)
        if not shards:
            raise InputError(f"{self.split_folder(split)}: contains no file {SHARD_PREFIX}*; choose another split.")
        return shards

    @property
    def label_map_file(self) -> Path:
        return Path(self.root) / LABEL_MAP_FILE


def split_names(folder_names: Iterable[str]) -> list[str]:
    """Return the splits among the names of folders."""
    return [name.removeprefix(SPLIT_PREFIX) for name in folder_names if name.startswith(SPLIT_PREFIX)]


def list_shards(split_folder: str | Path) -> list[str]:
    """Return the sorted shards in a split's folder; empty if the folder does not exist."""
    names = open_storage(split_folder).list_names()
    return [f"{split_folder}/{name}" for name in names if name.startswith(SHARD_PREFIX)]
