"""Third step: read the images of one shard, check them, write one TFRecord file."""

import time
import uuid
from dataclasses import dataclass, field, replace

import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.components.example_gen import work_files
from detloom.components.example_gen.build_example import BuiltExample, SourceImage, build_example
from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.ingest_job import IngestJob, SplitCounts, decode_record
from detloom.components.example_gen.plan import Shard, read_plan
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.components.example_gen.work_files import LineWriter
from detloom.schemas import example_keys as keys
from detloom.schemas.rejects import Reason, Reject, format_reject

_PROGRESS_SECONDS = 1.0  # between two notes of how far a shard is
# Every key that is computed anew; what else an existing tf.Example holds is passed through.
_OWN_KEYS = frozenset(
    (
        keys.IMAGE_ENCODED, *keys.STATISTICS_KEYS, keys.MASK,
        keys.KEYPOINT_X, keys.KEYPOINT_Y, keys.KEYPOINT_VISIBILITY, keys.NUM_KEYPOINTS,
    )
)  # fmt: skip


@dataclass
class ShardOutcome:
    """What one shard came to, and how long it took, of which `decode_images` took `decode_seconds`."""

    split: str
    counts: SplitCounts = field(default_factory=SplitCounts)
    seconds: float = 0.0
    decode_seconds: float = 0.0


def write_shard(shard: Shard, job: IngestJob) -> str:
    """Write one shard under a temporary name and rename it when it is complete; one image is in memory at a time."""
    started = noted = time.monotonic()
    class_ids = {name: class_id for class_id, name in read_plan(job).label_map}
    outcome = ShardOutcome(shard.split, SplitCounts(num_shards=1))
    folder = DataFolder(job.root)
    name = f"{shard.split}-{shard.index:06d}"
    temporary = f"{job.staging}/shards/{name}-{uuid.uuid4().hex}"
    work_files.make_folder(f"{job.staging}/shards")
    options = tf.io.TFRecordOptions(compression_type="GZIP" if shard.gzip else "")
    with (
        LineWriter(job.rejects_file(f"c-{name}")) as rejects,
        tf.io.TFRecordWriter(temporary, options) as writer,
    ):
        for number, line in enumerate(work_files.read_lines(job.shard_records_file(shard.split, shard.index)), start=1):
            record = decode_record(line)
            record = record if record.split == shard.split else replace(record, split=shard.split)
            built = _read_and_build(record, folder, class_ids, job)
            found = [built] if isinstance(built, Reject) else built.rejects
            for reject in found:
                outcome.counts.add_reject(reject)
                rejects.write(format_reject(reject))
            if isinstance(built, BuiltExample):
                writer.write(built.example)
                _count(built, outcome.counts)
                outcome.decode_seconds += built.decode_seconds
            now = time.monotonic()
            if now - noted > _PROGRESS_SECONDS:
                noted = now
                work_files.write_json(job.progress_file(name), number)
    target = job.finished_shard(shard.split, shard.file_name)
    work_files.make_folder(target.rpartition("/")[0])
    tf.io.gfile.rename(temporary, target, overwrite=True)
    outcome.seconds = time.monotonic() - started
    values = {**vars(outcome), "counts": outcome.counts.to_json()}
    work_files.write_json(job.shard_outcome_file(shard.split, shard.index), values)
    return target


def read_shard_outcome(path: str) -> ShardOutcome:
    values = work_files.read_json(path)
    return ShardOutcome(**{**values, "counts": SplitCounts.from_json(values["counts"])})


def _count(built: BuiltExample, counts: SplitCounts) -> None:
    counts.num_written += 1
    counts.num_without_boxes += not built.class_names
    counts.num_boxes_written += len(built.class_names)
    counts.num_bytes += len(built.example)
    if built.repairs:
        counts.repairs.update(built.repairs)
    if built.left_out:
        counts.left_out.update(built.left_out)
    counts.boxes_by_class.update(built.class_names)


def _read_and_build(
    record: SourceRecord, folder: DataFolder, class_ids: dict[str, int], job: IngestJob
) -> BuiltExample | Reject:
    try:
        image = _read_image(record, folder, job.params.max_image_bytes)
    except SourceError as error:
        return record.reject_record(error.reason, error.detail)
    return build_example(record, image, class_ids=class_ids, params=job.params)


def _read_image(record: SourceRecord, folder: DataFolder, max_bytes: int) -> SourceImage:
    if record.example_at is None:
        return SourceImage(folder.read_bytes(record.image_path, max_bytes), record.image_path)
    offset, length = record.example_at
    if length > max_bytes:
        raise SourceError(Reason.RECORD_TOO_LARGE, f"a record of {length} bytes, allowed: {max_bytes}")
    with folder.open(record.image_path) as file:
        file.seek(offset)
        data = file.read(length)
    try:
        features = tf.train.Example.FromString(data).features.feature
    except DecodeError:
        raise SourceError(Reason.UNREADABLE_ANNOTATION, "not a tf.Example") from None
    encoded = features[keys.IMAGE_ENCODED].bytes_list.value
    if len(encoded) != 1:
        raise SourceError(Reason.NOT_AN_IMAGE, f"{len(encoded)} values of {keys.IMAGE_ENCODED}, allowed: 1")
    named = features[keys.IMAGE_FILENAME].bytes_list.value
    file_name = named[0].decode("utf-8", "replace") if named else record.record_key
    others = {key: feature for key, feature in features.items() if key not in _OWN_KEYS}
    num_objects = len(features[keys.BOX_XMIN].float_list.value)
    return SourceImage(encoded[0], file_name, others, num_objects, is_upright=True)
