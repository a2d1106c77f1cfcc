"""Quarantined records read once more, when their files are mended: by the settings and classes of the first time."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam

from detloom.components.example_gen.ingest import IngestFolders, Subset, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.work_files import exists, read_json
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import REJECTS_FILE, REPORT_FILE, Reason, read_rejects

# What was refused for being there already: mending it means another key or image, which makes it another record.
_NOT_REPLAYED = (Reason.DUPLICATE_ID, Reason.DUPLICATE_IMAGE)


def replay(
    rejects_folder: str | Path, out: IngestFolders, make_pipeline: Callable[[], beam.Pipeline], root: str = ""
) -> dict[str, Any]:
    """Ingest the quarantined records of an earlier ingestion again; returns the report of this one.

    The output holds these records alone: examples of those that are good now, in the splits and with the class ids of
    the first time, and the rest in a quarantine of its own. Its report has `num_asked`, the quarantined records that
    were looked for; fewer `num_in` means that the data set has no record of that key any more. Duplicates are not
    looked for.

    Args:
        rejects_folder: of the earlier ingestion, with the rejects and the report.
        root: the data folder, where it is no longer the one that the report names.

    Raises:
        InputError: if the folder is not that of a finished ingestion, or none of its rejects can be replayed.
    """
    folder = Path(rejects_folder)
    for name in (REPORT_FILE, REJECTS_FILE):
        if not exists(str(folder / name)):
            raise InputError(f"{folder / name}: no such file; give the folder of rejects of a finished ingestion.")
    try:
        report = read_json(str(folder / REPORT_FILE))
        params = ExampleGenParams.from_properties(report["params"])
        sources, subfolders = dict(report["sources"]), tuple(report["subfolders"])
        label_map = tuple((int(class_id), str(name)) for class_id, name in report["label_map"])
        data_format, first_root = str(report["data_format"]), str(report["root"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / REPORT_FILE}: not the report of an ingestion ({error!r}).") from None
    if params.split_stratify and params.split_group:
        raise InputError(
            f"{folder / REPORT_FILE}: the data were divided by group with the mix of classes kept; where the group of "
            "a mended record went is known to a whole ingestion only: ingest anew."
        )
    if _is_inside(str(folder), out.examples):
        raise InputError(f"{out.examples}: holds the ingestion that is replayed; give a folder of its own.")
    # By ratio, a record goes where its hash puts it; without the others, no mix of classes can be kept.
    splits = {} if params.split_ratios else sources
    params = replace(params, data_format=data_format, splits=splits, split_stratify=False)
    records = list(_find_records(folder, by_ratio=bool(params.split_ratios)))
    if not records:
        raise InputError(f"{folder / REJECTS_FILE}: holds no quarantined record that could be replayed.")
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
    if "://" in path or "://" in folder:
        return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder)}/")
