"""Recognize label files of tools whose formats are not read, to name the export to use instead."""

import re

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources.layout import read_head

_HEAD_BYTES = 16 * 1024  # searching takes up to quadratic time
_COCO = "export it as COCO"
_COLUMNS = "filename, class, xmin, ymin, xmax, ymax"
# Suffixes, an expression in the first 16 KiB, and what such a file is; the first match counts.
_KINDS = (
    (
        ".json .jsonl .csv .xml .txt",
        r"^(\xff\xfe|\xfe\xff)",
        "UTF-16; convert it to UTF-8 with `iconv -f UTF-16 -t UTF-8`",
    ),
    (".json", r'"file"\s*:.*"fname"', f"a project of VIA 3; label images with VIA 2, or {_COCO}"),
    (".json .ndjson", r'"data_row"|"External ID"', f"an export of Labelbox; {_COCO} with its converter"),
    (".json", r'"item"\s*:.*"slots"|"bounding_box"\s*:', "Darwin JSON of V7; export it as COCO or VOC"),
    (".json", r'"box2d"\s*:', "BDD100K or Scalabel; convert it to COCO with scalabel"),
    (".json", r'"assets"\s*:|"asset"\s*:\s*{', "a project of VoTT; export it as CSV or VOC"),
    (".json", r'"dm_format_version"|"label_cat', "Datumaro; convert it with `datum convert -f coco`"),
    (".json", r'"segments_info"|"caption"\s*:', "COCO panoptic or captions; use the file of instances"),
    (".json .jsonl .manifest", r'"source-ref"\s*:', f"a manifest of SageMaker Ground Truth; {_COCO}"),
    (".jsonl .ndjson", r'"objects"\s*:\s*{', "a data set of Hugging Face; write its boxes as COCO"),
    (".csv", r"(?i)^(TRAIN|TEST|VALIDATION?|UNASSIGNED),(gs|s3)://", "a CSV of AutoML; write its boxes as COCO"),
    (".csv", r"(?i)^[^\n]*\bbbox\b", f"boxes in one column `bbox`; write the columns {_COLUMNS}"),
    (".csv", r"", f"a CSV without the columns {_COLUMNS}"),
    (".xml", r"<annotations>.*<track ", "a video of CVAT; export the task as 'CVAT for images 1.1'"),
    (".txt", r"^(imagesource|gsd):|^(-?[\d.]+ ){8}\S+ [012]\s", "DOTA's rotated boxes; convert them to COCO"),
    (".txt", r"^[A-Za-z][^\n]*( \d+(\.\d+)?){4}\s*(\n|$)", f"OIDv4 text or alike; write a CSV with {_COLUMNS}"),
    (".mat", r"", f"a MATLAB file; {_COCO}"),
    (".parquet", r"", "a table of Hugging Face or alike; write its boxes as COCO"),
)


def describe_unknown(folder: DataFolder, path: str) -> str:
    """Return what a label file of an unknown format looks like and what to do, as text in brackets; "" if unknown."""
    head = read_head(folder, path)[:_HEAD_BYTES]
    for suffixes, expression, meaning in _KINDS:
        if path.lower().endswith(tuple(suffixes.split())) and re.search(expression.encode(), head, re.DOTALL):
            return f" (it looks like {meaning})"
    return ""
