"""One Beam pass over the shards of all splits: serialized examples in, statistics by split out. Images stay encoded."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.components.dataset_validator.split_statistics import SplitStatistics
from detloom.schemas import example_keys as keys
from detloom.schemas.label_map import LabelMap


def add_example(statistics: SplitStatistics, serialized: bytes, known_ids: frozenset[int]) -> None:
    """Count one serialized tf.Example; one that cannot be used is counted as unreadable, by its key if it has one."""
    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except DecodeError:
        statistics.add_unreadable("(not a tf.Example)")
        return
    record_key = b"".join(feature[keys.IMAGE_SOURCE_ID].bytes_list.value[:1]).decode("utf-8", "replace")
    heights, widths = feature[keys.IMAGE_HEIGHT].int64_list.value, feature[keys.IMAGE_WIDTH].int64_list.value
    columns = [np.array(feature[key].float_list.value, np.float32) for key in keys.BOX_KEYS_YXYX]
    class_ids_N = np.array(feature[keys.CLASS_ID].int64_list.value, np.int64)
    has_one_size = len(heights) == 1 and len(widths) == 1 and min(heights[0], widths[0]) > 0
    if not has_one_size or {len(column) for column in columns} != {len(class_ids_N)}:
        statistics.add_unreadable(record_key or "(without image/source_id)")
        return
    statistics.update(
        record_key,
        (heights[0], widths[0]),
        np.stack(columns, axis=1),
        class_ids_N,
        known_ids,
        num_crowd=sum(feature[keys.IS_CROWD].int64_list.value),
        num_difficult=sum(feature[keys.DIFFICULT].int64_list.value),
    )


def read_shard(split_and_path: tuple[str, str], known_ids: frozenset[int]) -> dict[str, SplitStatistics]:
    """Statistics of one TFRecord file, streamed; from where it is damaged, it counts as one unreadable record."""
    split, path = split_and_path
    statistics = SplitStatistics()
    try:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            add_example(statistics, serialized, known_ids)
    except tf.errors.DataLossError:
        statistics.add_unreadable(f"(damaged file {split}/{Path(path).name})")
    return {split: statistics}


class _MergeStatistics(beam.CombineFn):
    """Sums statistics by split; the order does not matter."""

    def create_accumulator(self) -> dict[str, SplitStatistics]:
        return {}

    def add_input(
        self, accumulator: dict[str, SplitStatistics], element: dict[str, SplitStatistics]
    ) -> dict[str, SplitStatistics]:
        return self.merge_accumulators([accumulator, element])

    def merge_accumulators(self, accumulators: Iterable[dict[str, SplitStatistics]]) -> dict[str, SplitStatistics]:
        merged: dict[str, SplitStatistics] = {}
        for accumulator in accumulators:
            for split, statistics in accumulator.items():
                merged.setdefault(split, SplitStatistics()).merge(statistics)
        return merged

    def extract_output(self, accumulator: dict[str, SplitStatistics]) -> dict[str, SplitStatistics]:
        return accumulator


def collect_statistics(
    shard_patterns: Mapping[str, str],
    label_map: LabelMap,
    scratch: Path,
    make_pipeline: Callable[[], beam.Pipeline],
) -> dict[str, SplitStatistics]:
    """Statistics by split, in the order of `shard_patterns`; a split without a record has all counts zero.

    Args:
        shard_patterns: by split, a glob for its TFRecord files.
        scratch: a folder that the Beam workers can write to; a file is made there and removed.
    """
    # TensorFlow reads the files, not Beam's TFRecord source: that one computes its checksums in Python.
    shards = [(split, path) for split, pattern in shard_patterns.items() for path in sorted(tf.io.gfile.glob(pattern))]
    outcome = scratch / "statistics.pickle"
    with make_pipeline() as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(shards)
            | "Spread" >> beam.Reshuffle()
            | "ReadShard" >> beam.Map(read_shard, frozenset(label_map.class_ids))
            | "MergeStatistics" >> beam.CombineGlobally(_MergeStatistics())
            | "WriteStatistics" >> beam.Map(_write, str(outcome))
        )
    found: dict[str, SplitStatistics] = pickle.loads(outcome.read_bytes())  # noqa: S301 - written by us, just now
    outcome.unlink()
    return {split: found.get(split, SplitStatistics()) for split in shard_patterns}


def _write(statistics: dict[str, SplitStatistics], path: str) -> None:
    Path(path).write_bytes(pickle.dumps(statistics))
