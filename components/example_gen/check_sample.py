"""Read a few records of a data set with ingestion's readers and checks, without writing examples.

Reading the first records may take long for a large file of annotations or a slow storage, so the caller limits the
time, for example by running `check_sample_as_json` in a process of its own.
"""

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field

import tensorflow as tf

from detloom.components.example_gen.build_example import BuiltExample
from detloom.components.example_gen.classes import check_classes, check_units, choose_label_map, merge_outcomes
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.ingest import IngestFolders, build_job, find_format
from detloom.components.example_gen.ingest_job import IngestJob, decode_record, decode_row
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.read_annotations import read_first_annotations, read_outcome
from detloom.components.example_gen.skipped_spans import PLACEHOLDER, numbers_of
from detloom.components.example_gen.sources import formats
from detloom.components.example_gen.write_shard import read_and_build
from detloom.schemas.contracts.rejects import Reject, parse_reject
from detloom.schemas.errors import InputError


@dataclass
class SampleReport:
    """Counts of a sample.

    Attributes:
        error: why the data cannot be read at all, or "".
        num_records, num_boxes: what was read, with what was refused.
        reasons: number of refused records and boxes by reason.
        first: file and detail of the first refused record, or else of the first refused box.
    """

    error: str = ""
    data_format: str = ""
    num_records: int = 0
    num_records_refused: int = 0
    num_boxes: int = 0
    num_boxes_refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add_reject(self, reject: Reject) -> None:
        """Count a refused record with its boxes, or a refused box, which is already counted as read."""
        self.reasons[reject.reason.value] += 1
        is_record = reject.scope == "record"
        if not self.first or (is_record and not self.num_records_refused):
            self.first = f"{reject.file}: {reject.detail}"
        self.num_records_refused += is_record
        self.num_boxes_refused += reject.num_boxes


def check_sample(root: str, params: ExampleGenParams, num_records: int) -> SampleReport:
    """Read and check the first records of each source of a data folder.

    Args:
        root: the data folder; of a path with placeholders such as {SPAN}, the folder with the highest numbers is taken.
        num_records: of all sources together.

    Raises:
        InputError: for what would stop the ingestion: no folder, no known format, a missing source, an unknown class.
    """
    root = _newest_folder(root)
    data_format, evidence = find_format(root, params)
    report = SampleReport(data_format=data_format)
    with tempfile.TemporaryDirectory(prefix="detloom-sample-") as folder:
        out = IngestFolders(folder, f"{folder}/rejects")
        job = build_job(root, params, out, data_format, evidence, ("",))
        job.staging.make_folder()
        for index, (split, source) in enumerate(job.sources.items()):
            chunks = formats.list_chunks(data_format, job.folder(""), split, source, job.params)
            chunk = next(iter(chunks))  # a source without any is an InputError
            read_first_annotations(index, "", chunk, job, max(1, num_records // len(job.sources)))
        _check_records(job, report)
    return report


def check_sample_as_json(root: str, properties: str, num_records: str) -> str:
    """Return the report as JSON; an InputError becomes its `error`.

    Args:
        properties: JSON of `ExampleGenParams.to_properties`.
    """
    try:
        report = check_sample(root, ExampleGenParams.from_properties(json.loads(properties)), int(num_records))
    except InputError as error:
        report = SampleReport(error=str(error))
    return json.dumps(vars(report))


def _check_records(job: IngestJob, report: SampleReport) -> None:
    """Count what the readers refused, then build the examples of the other records and count what that refuses."""
    indices = range(len(job.sources))
    outcomes = [read_outcome(job, index) for index in indices]
    summary = merge_outcomes(outcomes, job)
    label_map = choose_label_map(summary, job)
    check_classes(summary, job, label_map)
    check_units(summary, job)
    class_ids = {name: class_id for class_id, name in label_map.names_by_id} if label_map else {}
    report.num_records = sum(outcome.num_in for outcome in outcomes)
    report.num_boxes = sum(outcome.num_boxes_in for outcome in outcomes)
    folder = DataFolder(job.root)
    for index in indices:
        for line in job.staging.read_lines(job.rejects_file(f"a-{index:06d}")):
            report.add_reject(parse_reject(line))
        for line in job.staging.read_lines(job.records_file(index)):
            built = read_and_build(decode_record(decode_row(line)[1]), folder, class_ids, job)
            for reject in built.rejects if isinstance(built, BuiltExample) else (built,):
                report.add_reject(reject)


def _newest_folder(path: str) -> str:
    """Return the folder with files and the highest numbers at the placeholders; a path without any as it is."""
    if not PLACEHOLDER.search(path):
        return path
    path = path.rstrip("/")
    pattern = PLACEHOLDER.sub("*", path)
    found = (folder.rstrip("/") for folder in tf.io.gfile.glob(pattern))
    folders = [folder for folder in found if tf.io.gfile.glob(f"{folder}/*")]  # TFX looks for files, too
    if not folders:
        raise InputError(f"{path}: no folder matches; create the first one, or correct data.path.")
    return max(folders, key=lambda each: numbers_of(path, each))
