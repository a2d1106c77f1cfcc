"""What a model was trained and evaluated on, from the artifacts of the data."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detloom.components.dataset_validator.report import REPORT_JSON
from detloom.components.model_card.read_files import count, read_json, read_text, reading, text
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, format_label_map, parse_label_map
from detloom.schemas.rejects import REPORT_FILE
from detloom.trainer_module.run_folder import data_fingerprint

Json = Mapping[str, Any]

_SPLIT_PREFIX = "Split-"  # of TFX's split folders
_NOTEWORTHY = ("failed", "warned")
_REPORT = "the report of a data set validation"
_INGESTION = "the report of an ingestion"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """What TFX knows of an examples artifact; None is what it does not say.

    Attributes:
        files: TFX's fingerprint of the files that were ingested.
    """

    artifact_id: int | None = None
    span: int | None = None
    version: int | None = None
    files: str | None = None


def hash_text(content: str) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def describe_label_map(label_map: LabelMap, examples_uris: Sequence[str]) -> dict[str, Any]:
    """Its fingerprint, which does not depend on how the file was written.

    Raises:
        InputError: if the examples have other classes: they are not what the model was trained on.
    """
    for uri in examples_uris:
        path = f"{uri}/{LABEL_MAP_FILE}"
        if tf.io.gfile.exists(path) and parse_label_map(read_text(path, "the label map"), where=path) != label_map:
            raise InputError(f"{path}: its classes are not the model's; make the card from the data of the model.")
    return {"num_classes": label_map.num_classes, "sha256": hash_text(format_label_map(label_map))}


def describe_classes(label_map: LabelMap, report: Json | None) -> list[dict[str, Any]]:
    """Id and name of each class and its boxes by split; None without a report of the data."""
    boxes = {name: part["boxes_by_class"] for name, part in report["splits"].items()} if report else None
    return [
        {
            "id": class_id,
            "name": name,
            "num_boxes_by_split": {split: found.get(name, 0) for split, found in boxes.items()} if boxes else None,
        }
        for class_id, name in label_map.names_by_id
    ]


def read_dataset_report(folder: str) -> dict[str, Any]:
    """The parts of DatasetValidator's report that a card shows.

    Returns:
        verdict, sentence, span, `splits` with counts, `findings`: the checks that failed or warned.

    Raises:
        InputError: if it is absent or is no such report.
    """
    path = f"{folder}/{REPORT_JSON}"
    content = read_json(path, _REPORT)
    with reading(path, _REPORT):
        return {
            "verdict": text(content["verdict"]),
            "sentence": text(content["sentence"]),
            "span": None if content["span"] is None else count(content["span"]),
            "train_split": text(content["train_split"]),
            "splits": {
                str(name): {
                    "num_images": count(part["num_examples"]),
                    "num_boxes": count(part["num_boxes"]),
                    "num_without_boxes": count(part["num_without_boxes"]),
                    "boxes_by_class": {str(key): count(value) for key, value in part["boxes_by_class"].items()},
                }
                for name, part in content["splits"].items()
            },
            "findings": [
                {"title": text(each["title"]), "status": each["status"], "sentence": text(each["sentence"])}
                for each in content["checks"]
                if each["status"] in _NOTEWORTHY
            ],
        }


def read_ingestion(folder: str) -> dict[str, Any]:
    """What ingestion took and refused; `subfolders` are those of the data that were merged.

    Raises:
        InputError: if the report is absent or is none of an ingestion.
    """
    path = f"{folder}/{REPORT_FILE}"
    content = read_json(path, _INGESTION)
    with reading(path, _INGESTION):
        records, boxes = count(content["num_in"]), count(content["num_boxes_in"])
        refused_boxes = count(content["num_boxes_rejected"]) + count(content["num_boxes_quarantined"])
        return {
            "data_format": text(content["data_format"]),
            "subfolders": [text(name) for name in content["subfolders"] if name],
            "num_records": records,
            "num_records_refused": count(content["num_quarantined"]),
            "share_of_records_refused": count(content["num_quarantined"]) / records if records else None,
            "num_boxes": boxes,
            "num_boxes_refused": refused_boxes,
            "share_of_boxes_refused": refused_boxes / boxes if boxes else None,
            "refused_by_reason": {str(key): count(value) for key, value in content["rejects_by_reason"].items()},
        }


def describe_splits(report: Json | None, examples_uris: Sequence[str]) -> list[dict[str, Any]]:
    """Counts and the fingerprint of the files of each split, None for what is not known; "train" first."""
    shards = _find_shards(examples_uris)
    reported = report["splits"] if report else {}
    rows = []
    for name in sorted({*reported, *shards}, key=lambda name: (name != "train", name)):
        counts = {key: value for key, value in reported.get(name, {}).items() if key != "boxes_by_class"}
        rows.append(
            {
                "name": name,
                **{key: counts.get(key) for key in ("num_images", "num_boxes", "num_without_boxes")},
                "num_files": len(shards[name]) if name in shards else None,
                "sha256": hash_text(json.dumps(_fingerprint(shards[name]))) if name in shards else None,
            }
        )
    return rows


def is_trained_on(files: Any, splits: tuple[str, str], examples_uris: Sequence[str]) -> bool | None:
    """Whether a training names these very files; None where there are none to compare.

    Args:
        files: as `run_folder.data_fingerprint` describes them.
        splits: names of those that it was trained and evaluated on.
    """
    shards = _find_shards(examples_uris)
    if any(name not in shards for name in splits):
        return None
    return bool(files == {"train": _fingerprint(shards[splits[0]]), "eval": _fingerprint(shards[splits[1]])})


def _fingerprint(shards: Sequence[str]) -> Any:
    """Name, size and a hash over the beginning of each file, as the training writes them down."""
    try:
        return json.loads(data_fingerprint(shards, ()))["train"]
    except tf.errors.OpError as error:
        raise InputError(f"{shards[0]}: the examples cannot be read ({str(error).splitlines()[0][:200]}).") from None


def _find_shards(examples_uris: Sequence[str]) -> dict[str, list[str]]:
    """Files of each split folder, all of them, as the Trainer is given them."""
    shards: dict[str, list[str]] = {}
    for uri in examples_uris:
        for folder in sorted(tf.io.gfile.glob(f"{uri}/{_SPLIT_PREFIX}*")):
            if files := sorted(tf.io.gfile.glob(f"{folder}/*")):
                shards.setdefault(folder.rsplit("/", 1)[-1].removeprefix(_SPLIT_PREFIX), []).extend(files)
    return shards
