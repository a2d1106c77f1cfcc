"""Read quarantined records again after their files were corrected, with the original settings and classes."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam

from detloom.components.example_gen.ingest import IngestFolders, Subset, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.storage.storage import is_address, open_storage
from detloom.schemas.contracts.rejects import REJECTS_FILE, REPORT_FILE, Reason, read_rejects
from detloom.schemas.errors import InputError

# Rejected as duplicates: correcting them means another key or image, which makes another record.
_NOT_REPLAYED = (Reason.DUPLICATE_ID, Reason.DUPLICATE_IMAGE)


def replay(
    rejects_folder: str | Path, out: IngestFolders, make_pipeline: Callable[[], beam.Pipeline], root: str = ""
) -> dict[str, Any]:
    """Ingest the quarantined records of an earlier ingestion again; return the new report.

    The output holds only these records: examples of those that are valid now, in their original splits and with their
    original class ids, and a new quarantine for the rest. The report's `num_asked` is the number of quarantined records
    that were searched; a smaller `num_in` means that the data set no longer has a record with that key. Duplicates are
    not searched.

    Args:
        rejects_folder: of the earlier ingestion, with the rejects and the report.
        root: the data folder, if it is no longer the one in the report.

    Raises:
        InputError: if the folder is not that of a complete ingestion, or no reject can be replayed.
    """
    folder = Path(rejects_folder)
    for name in (REPORT_FILE, REJECTS_FILE):
        if not open_storage(folder).exists(name):
            raise InputError(
                f"{folder / name}: the file does not exist; give the rejects folder of a complete ingestion."
            )
    try:
        report = open_storage(folder).read_json(REPORT_FILE)
        params = ExampleGenParams.from_properties({**report["params"], "format": report["data_format"]})
        sources, subfolders = dict(report["sources"]), tuple(report["subfolders"])
        label_map = tuple((int(class_id), str(name)) for class_id, name in report["label_map"])
        first_root = str(report["root"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / REPORT_FILE}: not the report of an ingestion ({error!r}).") from None
    if params.stratify and params.group_by:
        raise InputError(
            f"{folder / REPORT_FILE}: the data were split by group with stratify; the split of a corrected "
            "record depends on all records: run the whole ingestion again."
        )
    if _is_inside(str(folder), out.examples):
        raise InputError(f"{out.examples}: contains the ingestion to replay; give a separate folder.")
    # With ratios, a hash selects a record's split; stratification would need the other records.
    splits = {} if params.split_by_ratio else sources
    params = replace(params, splits=splits, stratify=False)
    records = list(_find_records(folder, by_ratio=bool(params.split_by_ratio)))
    if not records:
        raise InputError(f"{folder / REJECTS_FILE}: contains no quarantined record that can be replayed.")
    subset = Subset(records=records, label_map=label_map)
    return ingest(root or first_root, params, out, make_pipeline, subfolders=subfolders, subset=subset)


def _find_records(folder: Path, *, by_ratio: bool) -> Iterator[tuple[str, str]]:
    seen = set()
    for reject in read_rejects(folder):
        record = ("" if by_ratio else reject.split, reject.record_key)
        if reject.scope == "record" and reject.reason not in _NOT_REPLAYED and record not in seen:
            seen.add(record)
            yield record


def _is_inside(path: str, folder: str) -> bool:
    if is_address(path) or is_address(folder):
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder)}/")
