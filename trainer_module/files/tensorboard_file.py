"""Event files for TensorBoard, written record by record, so that a killed run loses none in a buffer.

`tf.summary` writes the same format but cannot record the step from which a run was resumed.
"""

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from detloom.schemas.contracts.arrays import Array, Uint8Array

_FILE_VERSION = "brain.Event:2"  # required for TensorBoard to handle restarts
_PREFIX = "events.out.tfevents."
_JPEG_QUALITY = 90
_HISTOGRAM_BINS = 30


class EventFile:
    """One new file in `folder`; readers treat all files in it, ordered by name, as one run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = tf.io.TFRecordWriter(str(folder / f"{_PREFIX}{_next_number(folder):010d}.detloom"))
        self._write(tf.compat.v1.Event(wall_time=time.time(), file_version=_FILE_VERSION))

    def restart(self, step: int) -> None:
        """Tell readers to discard events of steps after `step`, in this file or earlier ones."""
        started = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        # Readers also discard the step of the event itself. TensorBoard ignores the first start event in a file.
        for _ in range(2):
            self._write(tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=started))

    def scalar(self, step: int, tag: str, value: float) -> None:
        summary = tf.compat.v1.Summary()
        summary.value.add(tag=tag, simple_value=value)  # the format in which all readers discard orphans
        self._write(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))

    def text(self, step: int, tag: str, markdown: str) -> None:
        self._add(step, tag, "text", tf.make_tensor_proto([markdown.encode()]))

    def images(self, step: int, tag: str, images_HW3: Sequence[Uint8Array]) -> None:
        """Write images, which may differ in size, as JPEG."""
        if not len(images_HW3):
            return
        height, width = images_HW3[0].shape[:2]
        encoded = [str(width).encode(), str(height).encode(), *map(_encode_jpeg, images_HW3)]
        self._add(step, tag, "images", tf.make_tensor_proto(encoded))

    def histogram(self, step: int, tag: str, values: Array) -> None:
        """Write a histogram of the finite values; nothing if there are none."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return
        counts, edges = np.histogram(finite, bins=_HISTOGRAM_BINS)
        rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
        self._add(step, tag, "histograms", tf.make_tensor_proto(rows))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, tag: str, plugin: str, tensor: Any) -> None:
        data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=data)
        summary = tf.compat.v1.Summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        self._write(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def _next_number(folder: Path) -> int:
    """Return seconds since 1970, as in TensorFlow's file names, but more than in any existing file.

    A run may be resumed within the same second, or on a machine with a slow clock.
    """
    numbers = [path.name.removeprefix(_PREFIX).partition(".")[0] for path in folder.glob(f"{_PREFIX}*")]
    return max(int(time.time()), *(int(number) + 1 for number in numbers if number.isdecimal()), 0)


def _encode_jpeg(image_HW3: Uint8Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image_HW3)).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()
