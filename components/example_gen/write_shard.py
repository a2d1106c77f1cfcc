"""Read and check the images of one shard (third step) and write one TFRecord file."""

import contextlib
import gzip
from collections.abc import Iterator
from typing import IO

from detloom.components.example_gen.build_example import BuiltExample, build_example, read_image
from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.ingest_job import IngestJob, SplitCounts, decode_record
from detloom.components.example_gen.plan import Shard, read_plan
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.contracts.rejects import Reason, Reject, format_reject
from detloom.trainer_module.files.tfrecord import frame_record

_GZIP_LEVEL = 6  # zlib's own default


def write_shard(shard: Shard, job: IngestJob) -> str:
    """Write one shard under a temporary name and rename it when complete.

    One image is in memory at a time; from a bucket, also those that are read ahead: up to 16, about 64 MiB.
    """
    class_ids = {name: class_id for class_id, name in read_plan(job).label_map}
    counts = SplitCounts(num_shards=1)
    folder = DataFolder(job.root)
    name = f"{shard.split}-{shard.index:06d}"
    staging = job.staging
    folder.expect(_image_files(shard, job), job.params.max_image_bytes)
    target = job.finished_shard(shard.split, shard.file_name)
    with (
        staging.open_to_write(job.rejects_file(f"c-{name}")) as rejects,
        staging.open_to_write(target) as file,
        _compressed(file) if shard.gzip else contextlib.nullcontext(file) as out,
    ):
        for line in staging.read_lines(job.shard_records_file(shard.split, shard.index)):
            record = decode_record(line)._replace(split=shard.split)
            built = read_and_build(record, folder, class_ids, job)
            found = [built] if isinstance(built, Reject) else built.rejects
            for reject in found:
                counts.add_reject(reject)
                rejects.write(format_reject(reject) + b"\n")
            if isinstance(built, BuiltExample):
                out.writelines(frame_record(built.example))
                _count(built, counts)
    staging.write_json(job.shard_outcome_file(shard.split, shard.index), vars(counts))
    return target


def _compressed(file: IO[bytes]) -> gzip.GzipFile:
    """Return a writer of compressed data, without name and time, which would differ between runs."""
    return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)


def _image_files(shard: Shard, job: IngestJob) -> Iterator[str]:
    """Yield the image files of a shard in the order in which they are written."""
    for line in job.staging.read_lines(job.shard_records_file(shard.split, shard.index)):
        record = decode_record(line)
        if record.example_at is None:
            yield record.image_path


def read_shard_outcome(job: IngestJob, path: str) -> SplitCounts:
    return SplitCounts(**job.staging.read_json(path))


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


def read_and_build(
    record: SourceRecord, folder: DataFolder, class_ids: dict[str, int], job: IngestJob
) -> BuiltExample | Reject:
    try:
        image = read_image(record, folder, job.params.max_image_bytes)
    except SourceError as error:
        detail = error.detail
        if error.reason is Reason.MISSING_FILE:
            detail = "the image is missing; if the images are in another folder, set images_dir"
        return record.reject_record(error.reason, detail)
    return build_example(record, image, class_ids=class_ids, params=job.params)
