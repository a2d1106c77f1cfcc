"""Read the facts about the data that a model was trained and evaluated on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from detloom.components.examples_folder import ExamplesFolder
from detloom.components.model_card.read_files import reading_json
from detloom.components.properties import DATASET_REPORT_FILE
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, format_label_map, label_map_of_examples
from detloom.schemas.contracts.rejects import REPORT_FILE
from detloom.schemas.errors import InputError
from detloom.trainer_module.run_state.run_folder import DATA_FILE, data_fingerprint

Json = Mapping[str, Any]

TRAIN_SPLITS = ("train", "eval")  # of the Trainer: for training, and to select the best weights
_NOTEWORTHY = ("failed", "warned")


def hash_text(content: str) -> str:
    """Return the hexadecimal SHA-256 of a text."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def describe_label_map(label_map: LabelMap, examples_uris: Sequence[str]) -> dict[str, Any]:
    """Return the number of classes and a fingerprint that does not depend on the file's formatting.

    Raises:
        InputError: if the classes of the examples differ, because then the model was not trained on them.
    """
    for uri in examples_uris:
        path, content = f"{uri}/{LABEL_MAP_FILE}", open_storage(uri).read(LABEL_MAP_FILE)
        if content is not None and label_map_of_examples(path, content, "") != label_map:
            raise InputError(
                f"{path}: its classes differ from the model's; give the data that the model was trained on."
            )
    return {"num_classes": label_map.num_classes, "sha256": hash_text(format_label_map(label_map))}


def describe_classes(label_map: LabelMap, report: Json | None) -> list[dict[str, Any]]:
    """Return id, name and boxes by split of each class; the boxes are None without a data set report."""
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
    """Read the parts of DatasetValidator's report that a card shows.

    Returns:
        verdict, sentence, span, `splits` with counts, `findings`: the checks that failed or warned.

    Raises:
        InputError: if it is absent or is not such a report.
    """
    with reading_json(f"{folder}/{DATASET_REPORT_FILE}", "the report of a data set validation") as content:
        return {
            **{key: content[key] for key in ("verdict", "sentence", "span", "train_split")},
            "splits": {
                name: {
                    "num_images": part["num_examples"],
                    **{key: part[key] for key in ("num_boxes", "num_without_boxes", "boxes_by_class")},
                }
                for name, part in content["splits"].items()
            },
            "findings": [
                {key: each[key] for key in ("title", "status", "sentence")}
                for each in content["checks"]
                if each["status"] in _NOTEWORTHY
            ],
        }


def read_ingestion(folder: str) -> dict[str, Any]:
    """Read the numbers of accepted and rejected records; `subfolders` are the merged subfolders of the data.

    Raises:
        InputError: if the ingestion report is missing or invalid.
    """
    with reading_json(f"{folder}/{REPORT_FILE}", "the report of an ingestion") as content:
        records, boxes, refused = content["num_in"], content["num_boxes_in"], content["num_quarantined"]
        refused_boxes = content["num_boxes_rejected"] + content["num_boxes_quarantined"]
        return {
            "data_format": content["data_format"],
            "subfolders": [name for name in content["subfolders"] if name],
            "num_records": records,
            "num_records_refused": refused,
            "share_of_records_refused": refused / records if records else None,
            "num_boxes": boxes,
            "num_boxes_refused": refused_boxes,
            "share_of_boxes_refused": refused_boxes / boxes if boxes else None,
            "refused_by_reason": content["rejects_by_reason"],
        }


def describe_splits(report: Json | None, examples_uris: Sequence[str]) -> list[dict[str, Any]]:
    """Return the counts and the fingerprint of the files of each split, "train" first; None if unknown."""
    shards = _find_shards(examples_uris)
    reported = report["splits"] if report else {}
    rows = []
    for name in sorted({*reported, *shards}, key=lambda name: (name != "train", name)):
        counts = reported.get(name, {})
        rows.append(
            {
                "name": name,
                **{key: counts.get(key) for key in ("num_images", "num_boxes", "num_without_boxes")},
                "num_files": len(shards[name]) if name in shards else None,
                "sha256": hash_text(_fingerprint(shards[name], ())) if name in shards else None,
            }
        )
    return rows


def is_trained_on(training_dir: str | None, examples_uris: Sequence[str]) -> bool | None:
    """Return True if a training run used exactly these files; None if there is nothing to compare."""
    shards = _find_shards(examples_uris)
    if training_dir is None or any(name not in shards for name in TRAIN_SPLITS):
        return None
    with reading_json(f"{training_dir}/{DATA_FILE}", "the list of training files") as trained:
        return bool(json.loads(_fingerprint(*(shards[name] for name in TRAIN_SPLITS))) == trained)


def _fingerprint(train_shards: Sequence[str], eval_shards: Sequence[str]) -> str:
    """Return the fingerprint that training records, of one or two splits."""
    try:
        return data_fingerprint(train_shards, eval_shards)
    except tf.errors.OpError as error:
        cause = str(error).splitlines()[0][:200]
        raise InputError(f"{train_shards[0]}: the examples cannot be read ({cause}).") from None


def _find_shards(examples_uris: Sequence[str]) -> dict[str, list[str]]:
    """Return all files of each split folder, as the Trainer receives them."""
    shards: dict[str, list[str]] = {}
    for uri in examples_uris:
        examples = ExamplesFolder(uri)
        for split in examples.list_splits():
            if files := sorted(tf.io.gfile.glob(f"{examples.split_folder(split)}/*")):
                shards.setdefault(split, []).extend(files)
    return shards
