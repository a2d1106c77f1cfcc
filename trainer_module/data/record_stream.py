"""The order of the training data, in which the n-th record depends on files, settings and n only.

So the order needs no checkpoint: a run that resumes at step s starts the stream where step s begins, and gets the
records that it would have got without the interruption.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import InputReader, Train
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.records import (
    compression_of,
    count_records,
    read_records,
    sampled_mean_bytes,
    scan_classes,
)
from detloom.trainer_module.runtime.host_memory import format_bytes

_ENDLESS = 2**62  # epochs
_NUMBERS_AT_ONCE = 2**16
_FILE_ORDER, _RECORD_ORDER = 1, 2  # salts that separate the random streams
_ONE = 2**20  # unit of the fixed-point numbers of `_Repeats`, which are exact in any epoch
_LOGGER = logging.getLogger("detloom")


def elements_per_step(train: Train, context: tf.distribute.InputContext) -> int:
    """Return the number of images that one input pipeline contributes to a step.

    Raises:
        InputError: if the batch cannot be divided evenly.
    """
    count, remainder = divmod(train.batch_size, context.num_input_pipelines)
    if remainder:
        raise InputError(
            f"train.batch_size: got {train.batch_size}, allowed: a multiple of {context.num_input_pipelines}, the "
            "number of workers."
        )
    return count


def build_record_stream(
    reader: InputReader,
    files: Sequence[str],
    lookup: ClassLookup,
    *,
    seed: int,
    context: tf.distribute.InputContext,
    first_element: int = 0,
) -> tf.data.Dataset:
    """Build an endless data set of (element number int64 [], serialized example) for one input pipeline.

    Several pipelines read different files; if there are fewer files than pipelines, they read different records of all
    files. With shuffling, seed and epoch determine the order of the files, of which `reader.num_readers` are read in
    turn, and the order of the shuffle buffer. If `first_element` is not 0, the records are counted first, and records
    that come before it are not read again, except those at the start of a file whose later records are needed.

    Raises:
        InputError: if a file cannot be read, or this pipeline has no record.
    """
    order = _Order(reader, tuple(files), lookup, seed, context)
    first_epoch, skipped = order.place_of(first_element)
    order.leave_out(first_epoch, skipped)
    epochs = tf.data.Dataset.range(first_epoch, _ENDLESS)
    return epochs.flat_map(order.epoch).skip(skipped).enumerate(start=first_element)


@dataclass(frozen=True)
class _Repeats:
    """The number of readings per epoch of each record, by its number over all files.

    A record with 2.5 readings is read two and three times in turn, starting at a random phase.

    Attributes:
        times_N: int64, in units of 1 / _ONE; 0 for records that are left out.
        phases_N: int64, 0 up to but excluding _ONE.
    """

    times_N: np.ndarray
    phases_N: np.ndarray

    def in_epoch(self, epoch: int) -> np.ndarray:
        return ((epoch + 1) * self.times_N + self.phases_N) // _ONE - (epoch * self.times_N + self.phases_N) // _ONE


class _Order:
    """The order of the records of one input pipeline."""

    def __init__(
        self,
        reader: InputReader,
        files: tuple[str, ...],
        lookup: ClassLookup,
        seed: int,
        context: tf.distribute.InputContext,
    ) -> None:
        self.reader, self.all_files, self.lookup, self.seed, self.context = reader, files, lookup, seed, context
        self.num_pipelines, self.pipeline = context.num_input_pipelines, context.input_pipeline_id
        self.by_record = self.num_pipelines > len(files)
        every = 1 if self.by_record else self.num_pipelines
        self.file_numbers = tuple(range(0 if self.by_record else self.pipeline, len(files), every))
        self.compression = compression_of(files)
        self._num_records: tuple[int, ...] | None = None  # of each file; counted on demand
        self.repeats = self._find_repeats()
        self.buffer_size = self._find_buffer_size() if reader.shuffle else 1
        self._left_out: tuple[int, np.ndarray] | None = None
        self._check_sources()

    def leave_out(self, epoch: int, num_elements: int) -> None:
        """Replace the records that only occur in the first elements of an epoch by empty ones, up to the first other.

        The order of an epoch depends on the number of records only, so that it is known without reading them.
        """
        if num_elements == 0:
            return
        counts = self._counts()
        times_N = np.ones(sum(counts), np.int64) if self.repeats is None else self.repeats.in_epoch(epoch)

        def numbers_of(epoch: tf.Tensor) -> tf.data.Dataset:
            return self.epoch(epoch, self._numbers)

        numbers = tf.data.Dataset.range(epoch, epoch + 1).flat_map(numbers_of)
        for batch in numbers.take(num_elements).batch(_NUMBERS_AT_ONCE).as_numpy_iterator():
            np.subtract.at(times_N, batch, 1)
        of_files = np.split(times_N > 0, np.cumsum(counts)[:-1])
        firsts = [int(is_needed.argmax()) if is_needed.any() else len(is_needed) for is_needed in of_files]
        self._left_out = epoch, np.array(firsts, np.int64)

    def epoch(
        self, epoch: tf.Tensor, read: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset] | None = None
    ) -> tf.data.Dataset:
        """Return the serialized examples of an epoch (int64 []).

        Args:
            read: returns the records of a file in an epoch, given the numbers of both; None reads the file.
        """
        read_file = read or self._records

        def read_numbered(number: tf.Tensor) -> tf.data.Dataset:
            records = read_file(number, epoch)
            return records if self.repeats is None else tf.data.Dataset.zip((self._numbers(number), records))

        numbers = tf.constant(self.file_numbers, tf.int64)
        if self.reader.shuffle:
            numbers = tf.random.experimental.stateless_shuffle(numbers, self._epoch_seed(_FILE_ORDER, epoch))
        records = tf.data.Dataset.from_tensor_slices(numbers).interleave(
            read_numbered,
            cycle_length=min(self.reader.num_readers, len(self.file_numbers)),
            block_length=self.reader.read_block_length,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if self.repeats is not None:
            records = records.flat_map(_repeated(self.repeats, epoch))
        if self.by_record:
            records = records.shard(self.num_pipelines, self.pipeline)
        if self.reader.shuffle:
            seed = self._epoch_seed(_RECORD_ORDER + self.pipeline, epoch)
            tf.compat.v1.set_random_seed(1)  # for this graph; otherwise the global seed would change the order
            records = records.shuffle(
                self.buffer_size,
                seed=tf.random.stateless_uniform([], seed, maxval=2**31 - 1, dtype=tf.int64),
                reshuffle_each_iteration=False,
            )
        return records

    def place_of(self, element: int) -> tuple[int, int]:
        """Return the epoch of an element and its position in that epoch."""
        if element == 0:
            return 0, 0
        if self.repeats is None:
            return divmod(element, self._size_of_epoch(0))
        epoch = 0
        while element >= (size := self._size_of_epoch(epoch)):
            element -= size
            epoch += 1
        return epoch, element

    def _epoch_seed(self, salt: int, epoch: tf.Tensor) -> tf.Tensor:
        return tf.random.experimental.stateless_fold_in(tf.constant([self.seed, salt], tf.int64), epoch)

    def _records(self, number: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        """Return the records of a file, empty where they are left out."""
        if self._left_out is None:
            return tf.data.TFRecordDataset(tf.constant(self.all_files)[number], compression_type=self.compression)
        first_epoch, firsts = self._left_out
        num_empty = tf.where(epoch == first_epoch, tf.constant(firsts)[number], 0)
        is_read = tf.cast(num_empty < tf.constant(self._counts(), tf.int64)[number], tf.int64)
        names = tf.constant(self.all_files)[number : number + is_read]  # a file without any needed record is not opened
        records = tf.data.TFRecordDataset(names, compression_type=self.compression).skip(num_empty)
        return tf.data.Dataset.from_tensors(b"").repeat(num_empty).concatenate(records)

    def _numbers(self, number: tf.Tensor, epoch: tf.Tensor | None = None) -> tf.data.Dataset:
        """Return the numbers of the records of a file over all files."""
        starts = tf.constant(np.cumsum([0, *self._counts()]), tf.int64)
        return tf.data.Dataset.range(starts[number], starts[number + 1])

    def _counts(self) -> tuple[int, ...]:
        if self._num_records is None:
            self._num_records = count_records(self.all_files)
        return self._num_records

    def _size_of_epoch(self, epoch: int) -> int:
        """Return the number of elements of this pipeline in an epoch."""
        counts = self._counts()
        if self.repeats is not None:
            firsts, of_record_N = np.cumsum([0, *counts[:-1]]), self.repeats.in_epoch(epoch)
            counts = tuple(
                int(of_record_N[first : first + count].sum()) for first, count in zip(firsts, counts, strict=True)
            )
        size = sum(counts[i] for i in self.file_numbers)
        return -(-(size - self.pipeline) // self.num_pipelines) if self.by_record else size

    def _find_repeats(self) -> _Repeats | None:
        one_of, share = self.reader.sample_1_of_n_examples, self.reader.class_balance
        if one_of == 1 and share == 0:
            return None
        factors: np.ndarray | float = 1.0
        if share:
            self._num_records, class_ids = scan_classes(self.all_files, self.lookup)
            factors = repeat_factors(class_ids[::one_of], share)
        times_N = np.zeros(sum(self._counts()), np.int64)
        times_N[::one_of] = np.round(factors * _ONE)
        if share:
            read, mean = len(times_N[::one_of]), times_N.sum() / _ONE
            _LOGGER.info("Class balance: %d images are read %.0f times per epoch in total.", read, mean)
        return _Repeats(times_N, np.random.default_rng(self.seed).integers(0, _ONE, len(times_N)))

    def _find_buffer_size(self) -> int:
        """Return the number of records in the shuffle buffer; see `InputReader.shuffle_buffer_bytes`.

        The limit is exact if all files together are smaller; otherwise the record size is estimated from the first
        records of some shards.
        """
        wanted, limit = self.reader.shuffle_buffer_size, self.reader.shuffle_buffer_bytes
        files = [self.all_files[i] for i in self.file_numbers]
        if not self.compression and sum(tf.io.gfile.stat(file).length for file in files) <= limit:
            return wanted
        mean_bytes = sampled_mean_bytes(files)
        fitting = max(int(limit / mean_bytes), 1) if mean_bytes else wanted
        if fitting < wanted:
            _LOGGER.info(
                "Shuffle buffer: %d records instead of %d, of about %s each (train_input.shuffle_buffer_bytes).",
                fitting,
                wanted,
                format_bytes(round(mean_bytes)),
            )
        return min(wanted, fitting)

    def _check_sources(self) -> None:
        """Check that this pipeline has a record; the endless stream would otherwise search forever."""
        if self.by_record:
            _LOGGER.warning(
                "%d workers read %d training files: each worker reads all files and uses some of the records; write at "
                "least as many shards as there are workers.",
                self.num_pipelines,
                len(self.all_files),
            )
        if self.repeats is not None:
            num_records = self._size_of_epoch(0)
        else:
            needed = self.pipeline + 1 if self.by_record else 1
            records = read_records([self.all_files[i] for i in self.file_numbers]).take(needed)
            num_records = sum(1 for _ in records) // needed
        if not num_records:
            raise InputError(
                f"{Path(self.all_files[0]).parent}: no record for worker {self.pipeline} of {self.num_pipelines}; "
                "train with fewer workers, or with more data."
            )


def _repeated(repeats: _Repeats, epoch: tf.Tensor) -> Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset]:
    """Return a function that repeats a numbered record; see `_Repeats.in_epoch`."""
    times_N, phases_N = tf.constant(repeats.times_N), tf.constant(repeats.phases_N)

    def repeat(number: tf.Tensor, record: tf.Tensor) -> tf.data.Dataset:
        before = epoch * times_N[number] + phases_N[number]
        return tf.data.Dataset.from_tensors(record).repeat((before + times_N[number]) // _ONE - before // _ONE)

    return repeat


def repeat_factors(class_ids: Sequence[np.ndarray], share: float) -> np.ndarray:
    """Return the number of readings per epoch of each image, float64, 1 or more (arXiv:1908.03195, appendix A).

    A class in a fraction f of the images requests sqrt(share / f) readings; the rarest class of an image decides.
    """
    num_images = Counter(class_id for ids in class_ids for class_id in ids.tolist())
    by_class = {class_id: max(1.0, math.sqrt(share * len(class_ids) / count)) for class_id, count in num_images.items()}
    return np.array([max((by_class[class_id] for class_id in ids.tolist()), default=1.0) for ids in class_ids])
