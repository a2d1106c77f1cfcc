"""The card as plain values, from folders; and its three files. Knows no TFX."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf

import detloom
from detloom.components.model_card import data_facts, training_facts
from detloom.components.model_card.data_facts import DataSource
from detloom.components.model_card.document import build_document
from detloom.components.model_card.evaluation_facts import read_evaluation
from detloom.components.model_card.export_facts import describe_export
from detloom.components.model_card.limits import find_limits
from detloom.components.model_card.render import format_markdown, format_page
from detloom.schemas.detections import ASSET_CONFIG
from detloom.schemas.errors import InputError
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.model_card_config import CARD_JSON, CARD_MARKDOWN, CARD_PAGE, ModelCardConfig
from detloom.schemas.typed_dict import to_canonical_json, to_dict
from detloom.trainer_module.predict import read_exported_label_map

FORMAT = "detloom_model_card/1"  # the number rises when a key changes its meaning or goes

_TRAIN, _EVAL = "train", "eval"


@dataclass(frozen=True, kw_only=True)
class CardInputs:
    """What a card is made from. A folder that is None is said to be not given; one that is given has to be whole.

    Attributes:
        name: of the model.
        model_dir: folder of the SavedModel.
        tflite_dir, onnx_dir: folders of its TFLite variants and of its ONNX file, which need not exist.
        evaluation_dir: what `report.py` of the evaluator writes.
        model_run_dir: folder of the training.
        dataset_report_dir, rejects_dir: what DatasetValidator and ingestion leave.
        examples_uris: roots of the examples, with a folder `Split-<name>` a split.
        train_splits: names of the splits that were trained on and that chose the weights.
        split: that the evaluation was made on.
        sources: what TFX knows of the examples, in their order.
        stated: what only people know.
        evaluator: settings of the evaluation; None where they are not known.
        trainer_fingerprint: of the source that trained; empty where it is not known.
        lineage: where model and data are registered, as (name, value).
    """

    name: str
    model_dir: str
    tflite_dir: str | None = None
    onnx_dir: str | None = None
    evaluation_dir: str | None = None
    model_run_dir: str | None = None
    dataset_report_dir: str | None = None
    rejects_dir: str | None = None
    examples_uris: Sequence[str] = ()
    train_splits: tuple[str, str] = (_TRAIN, _EVAL)
    split: str = "test"
    sources: Sequence[DataSource] = ()
    stated: ModelCardConfig = ModelCardConfig()
    evaluator: Evaluator | None = None
    trainer_fingerprint: str = ""
    lineage: Sequence[tuple[str, str]] = ()


def build_card(inputs: CardInputs) -> dict[str, Any]:
    """All that the card says, as plain JSON values; docs/model_card.md describes the keys.

    The same folders give the same card: the time in it is that of the export.

    Raises:
        InputError: a file that is absent or is not what its node writes, an evaluation or data of another model.
    """
    label_map = read_exported_label_map(inputs.model_dir)
    config = training_facts.read_config(f"{inputs.model_dir}/assets/{ASSET_CONFIG}")
    export = describe_export(inputs.model_dir, inputs.tflite_dir, inputs.onnx_dir)
    report = data_facts.read_dataset_report(inputs.dataset_report_dir) if inputs.dataset_report_dir else None
    training = training_facts.read_training(inputs.model_run_dir) if inputs.model_run_dir else None
    if inputs.model_run_dir and (different := training_facts.differing_sections(config, inputs.model_run_dir)):
        raise InputError(
            f"{inputs.model_run_dir}: the training had other settings than the model ({', '.join(different)}); give "
            "the folder of the training that exported it."
        )
    evaluator = inputs.evaluator or Evaluator()
    card: dict[str, Any] = {
        "format": FORMAT,
        "name": inputs.name,
        "created": export.pop("created"),
        "versions": export.pop("versions"),
        "trainer_fingerprint": inputs.trainer_fingerprint or None,
        "card_written_by": f"detloom {detloom.__version__}",
        "stated": to_dict(inputs.stated),
        "label_map": data_facts.describe_label_map(label_map, inputs.examples_uris),
        "classes": data_facts.describe_classes(label_map, report),
        "data": _describe_data(inputs, report),
        "configuration": training_facts.describe_config(config),
        "configuration_sha256": data_facts.hash_text(to_canonical_json(config)),
        "training": training,
        "evaluation": read_evaluation(inputs.evaluation_dir, label_map, inputs.split)
        if inputs.evaluation_dir
        else None,
        "wanted_precision": inputs.evaluator.wanted_precision if inputs.evaluator else None,
        "export": export,
        "lineage": [list(line) for line in inputs.lineage],
        "config": to_dict(config),
    }
    return {**card, "limits": find_limits(card, evaluator.min_slice_count)}


def write_card(card: Mapping[str, Any], folder: str) -> None:
    """Write the three files into `folder`, on any file system that TensorFlow knows.

    The page comes last: where it is, the others are.
    """
    document = build_document(card)
    contents = {
        CARD_JSON: json.dumps(card, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        CARD_MARKDOWN: format_markdown(document),
        CARD_PAGE: format_page(document),
    }
    tf.io.gfile.makedirs(folder)
    for name in reversed(contents):  # of a card before, the page first
        if tf.io.gfile.exists(f"{folder}/{name}"):
            tf.io.gfile.remove(f"{folder}/{name}")
    for name, content in contents.items():
        with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
            file.write(content.encode("utf-8", "replace"))


def _describe_data(inputs: CardInputs, report: Mapping[str, Any] | None) -> dict[str, Any]:
    is_trained_on = None
    if inputs.model_run_dir:
        files = training_facts.read_trained_files(inputs.model_run_dir)
        is_trained_on = data_facts.is_trained_on(files, inputs.train_splits, inputs.examples_uris)
    return {
        "splits": data_facts.describe_splits(report, inputs.examples_uris),
        "train_split": report["train_split"] if report else inputs.train_splits[0],
        "sources": [asdict(source) for source in inputs.sources],
        "span": report["span"] if report else None,
        "ingestion": data_facts.read_ingestion(inputs.rejects_dir) if inputs.rejects_dir else None,
        "health": {key: report[key] for key in ("verdict", "sentence", "findings")} if report else None,
        "is_what_was_trained_on": is_trained_on,
    }
