"""Read TensorFlow checkpoints by key and check that they are complete; nothing in them is executed."""

import contextlib
import functools
import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import PLACEHOLDER
from detloom.schemas.model.config_checks import placeholder_sentence
from detloom.trainer_module.weights.checkpoint_index import check_index, is_special
from detloom.trainer_module.weights.odapi_keys import VALUE

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # written by tf.train.Checkpoint, not by tf.compat.v1's Saver
_SLOT = ".OPTIMIZER_SLOT"
_NOT_WEIGHTS = ("save_counter", "step", "global_step", "optimizer")  # first components of keys


@dataclass(frozen=True)
class CheckpointFile:
    """A complete checkpoint.

    Attributes:
        path: without suffix.
        shapes: shape by key of every array except the object graph.
    """

    path: str
    shapes: dict[str, tuple[int, ...]]
    _reader: Any
    _graph: TrackableObjectGraph | None

    @property
    def stores_objects(self) -> bool:
        """True if `tf.train.Checkpoint` wrote it; otherwise it stores arrays by name."""
        return self._graph is not None

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return `shapes` without counters and optimizer state."""
        return {
            key: shape
            for key, shape in self.shapes.items()
            if _SLOT not in key and key.split("/")[0] not in _NOT_WEIGHTS
        }

    def find_key(self, key: str) -> str | None:
        """Return the key under which the variable with this object path is stored, or None.

        An object with several names is stored under one of them, so the path is looked up in the stored object graph.
        """
        if key in self.shapes:
            return key
        node = self._follow(tuple(key.removesuffix(VALUE).split("/"))) if self._graph is not None else None
        if self._graph is None or node is None:
            return None
        stored = {attribute.checkpoint_key for attribute in self._graph.nodes[node].attributes}
        return next((name for name in sorted(stored) if name in self.shapes), None)

    def read(self, key: str) -> np.ndarray:
        return np.asarray(self._reader.get_tensor(key))

    def dtype(self, key: str) -> tf.DType:
        return self._dtypes[key]

    @functools.cached_property
    def _dtypes(self) -> dict[str, tf.DType]:
        return dict(self._reader.get_variable_to_dtype_map())

    def _follow(self, steps: tuple[str, ...]) -> int | None:
        node: int | None = 0
        for step in steps:
            node = None if node is None else self._children[node].get(step)
        return node

    @functools.cached_property
    def _children(self) -> list[dict[str, int]]:
        """Children of each node by name, escaped as in keys."""
        assert self._graph is not None
        return [{escape_name(child.local_name): child.node_id for child in node.children} for node in self._graph.nodes]


def read_checkpoint(path: str) -> CheckpointFile:
    """Open a checkpoint and read every value once, to detect a truncated file.

    Args:
        path: without suffix, such as ".../ckpt-0".

    Raises:
        InputError: if it is the zoo's placeholder, missing, incomplete, corrupt or empty.
    """
    with access_errors_as_input_errors(path):
        _check_files(path)
    try:
        check_index(path)
        reader = tf.train.load_checkpoint(path)
        shapes = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
        for key in shapes:
            reader.get_tensor(key)
        serialized = reader.get_tensor(_OBJECT_GRAPH) if _OBJECT_GRAPH in shapes else None
        graph = _parse_graph(serialized) if serialized is not None else None
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError, DecodeError) as error:  # from a truncated file
        cause = " ".join(str(error).split())
        raise InputError(
            f"train.fine_tune_checkpoint: {path} cannot be read ({cause}); copy it again from its source."
        ) from None
    shapes.pop(_OBJECT_GRAPH, None)
    file = CheckpointFile(path, shapes, reader, graph)
    if not file.weight_shapes():
        raise InputError(
            f"train.fine_tune_checkpoint: {path} has no weights; allowed: a checkpoint of a detector or a backbone."
        )
    return file


@contextlib.contextmanager
def access_errors_as_input_errors(path: str) -> Iterator[None]:
    """Convert the error of an unknown, unreachable or inaccessible file system to an InputError."""
    try:
        yield
    except tf.errors.OpError as error:
        cause = " ".join(error.message.split())
        raise InputError(
            f"train.fine_tune_checkpoint: {path} cannot be accessed ({cause}); allowed: a path that TensorFlow can "
            "read here."
        ) from None


def _parse_graph(serialized: bytes) -> TrackableObjectGraph:
    graph = TrackableObjectGraph.FromString(serialized)
    ids = range(len(graph.nodes))
    if not ids or any(child.node_id not in ids for node in graph.nodes for child in node.children):
        raise ValueError("its object graph is corrupt: it refers to objects that do not exist")
    return graph


def escape_name(name: str) -> str:
    """Escape the name of an object as tf.train.Checkpoint does in a key."""
    return name.replace(".", "..").replace("/", ".S")


def check_path(path: str) -> None:
    """Raise InputError for a path that cannot be a checkpoint: the zoo's placeholder or a pattern."""
    if PLACEHOLDER in path:
        raise InputError(placeholder_sentence(path))
    if re.search(r"[*?]", path):
        with access_errors_as_input_errors(path):
            matching = sorted(name.removesuffix(".index") for name in tf.io.gfile.glob(f"{path}.index"))
        hint = f" Did you mean '{matching[-1]}'?" if matching else ""
        raise InputError(f"train.fine_tune_checkpoint: got the pattern {path}, allowed: one path.{hint}")


def _check_files(path: str) -> None:
    endings = (".index", ".data-")
    if any(ending in path.rpartition("/")[2] for ending in endings):
        stem = path[: max(path.rfind(ending) for ending in endings)]
        raise InputError(f"train.fine_tune_checkpoint: got {path}, allowed: the path without suffix, {stem}.")
    if is_special(f"{path}.index") or any(map(is_special, glob.glob(f"{glob.escape(path)}.data-*"))):
        raise InputError(f"train.fine_tune_checkpoint: {path} is not made of regular files.")
    if not tf.io.gfile.exists(f"{path}.index"):
        raise InputError(f"train.fine_tune_checkpoint: {_what_is_there(path)}")
    folder, _, stem = path.rpartition("/")
    counts = [
        int(match[1])
        for name in tf.io.gfile.listdir(folder or ".")
        if (match := re.fullmatch(rf"{re.escape(stem)}\.data-\d{{5}}-of-(\d{{5}})", name))
    ]
    if not counts or len(counts) != max(counts):
        raise InputError(
            f"train.fine_tune_checkpoint: {path} is incomplete: got {len(counts)} of {max(counts, default=1)} files "
            f"{stem}.data-...; copy it again with all of them."
        )


def _what_is_there(path: str) -> str:
    if tf.io.gfile.isdir(path):
        latest = newest_checkpoint(path) or newest_checkpoint(f"{path}/checkpoints") or _only_checkpoint(path)
        hint = f" Did you mean '{latest}'?" if latest else ""
        return f"{path} is a folder; there is no {path}.index.{hint}"
    if tf.io.gfile.exists(path):
        return f"{path} is not a checkpoint: there is no {path}.index; allowed: the checkpoint path without suffix."
    return f"no checkpoint {path}: there is no {path}.index."


def newest_checkpoint(folder: str) -> str:
    """Return the newest checkpoint of TensorFlow's list in the folder; empty if the folder does not have it.

    The list may come from elsewhere and name any path: only the file name is used.
    """
    listed = f"{folder}/checkpoint"
    if not tf.io.gfile.exists(listed) or tf.io.gfile.isdir(listed) or is_special(listed):
        return ""
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # not text
        return ""
    if state is None:
        return ""
    path = f"{folder}/{state.model_checkpoint_path.rpartition('/')[2]}"
    return path if tf.io.gfile.exists(f"{path}.index") else ""


def _only_checkpoint(folder: str) -> str:
    """Return the checkpoint in the folder or its subfolder `checkpoint`, as in the zoo's archives."""
    index_files = [name for place in (folder, f"{folder}/checkpoint") for name in tf.io.gfile.glob(f"{place}/*.index")]
    return index_files[0].removesuffix(".index") if index_files else ""
