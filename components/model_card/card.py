"""Build the card as plain values from the folders of a run, and write its three files. No TFX."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import detloom
from detloom.components.model_card import data_facts, model_facts
from detloom.components.model_card.evaluation_facts import read_evaluation
from detloom.components.model_card.limits import find_limits
from detloom.components.model_card.model_facts import describe_export
from detloom.components.model_card.render import format_markdown, format_page
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import ASSET_CONFIG
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_canonical_json, to_dict
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.model_card import CARD_JSON, CARD_MARKDOWN, CARD_PAGE, ModelCardSettings
from detloom.trainer_module.export.predict import read_exported_label_map

FORMAT = "detloom_model_card/1"  # the number increases when a key is removed or changes its meaning


@dataclass(frozen=True, kw_only=True)
class CardInputs:
    """Sources of a card. The card names the folders that are None as not given; a given folder must be complete.

    Attributes:
        name: name of the model.
        model_dir: folder of the SavedModel.
        tflite_dir, onnx_dir: folders of its TFLite variants and of its ONNX file, which need not exist.
        evaluation_dir: folder with the evaluator's report.
        model_run_dir: folder of the training run.
        dataset_report_dir, rejects_dir: outputs of DatasetValidator and of ingestion.
        examples_uris: roots of the examples, with one folder `Split-<name>` per split.
        train_splits: names of the split used for training and of the split used to select the best weights.
        split: split used for the evaluation.
        sources: metadata of the examples in ML Metadata: artifact_id, span, version, files (TFX's fingerprint).
        stated: statements by people.
        evaluator: settings of the evaluation; None if unknown.
        trainer_fingerprint: fingerprint of the training code; empty if unknown.
        lineage: records of model and data in ML Metadata, as (name, value).
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
    train_splits: tuple[str, str] = ("train", "eval")
    split: str = "test"
    sources: Sequence[Mapping[str, Any]] = ()
    stated: ModelCardSettings = ModelCardSettings()
    evaluator: EvaluatorSettings | None = None
    trainer_fingerprint: str = ""
    lineage: Sequence[tuple[str, str]] = ()


def build_card(inputs: CardInputs) -> dict[str, Any]:
    """Build the content of the card as plain JSON values; docs/model_card.md describes the keys.

    The same folders give the same card; its time is the time of the export.

    Raises:
        InputError: if a file is missing or invalid, or if the evaluation or the data belong to another model.
    """
    label_map = read_exported_label_map(inputs.model_dir)
    config = model_facts.read_config(f"{inputs.model_dir}/assets/{ASSET_CONFIG}")
    export = describe_export(inputs.model_dir, inputs.tflite_dir, inputs.onnx_dir)
    report = data_facts.read_dataset_report(inputs.dataset_report_dir) if inputs.dataset_report_dir else None
    folder = inputs.evaluation_dir
    evaluation = read_evaluation(folder, label_map, inputs.split) if folder else None
    training = model_facts.read_training(inputs.model_run_dir) if inputs.model_run_dir else None
    if inputs.model_run_dir and (different := model_facts.differing_sections(config, inputs.model_run_dir)):
        raise InputError(
            f"{inputs.model_run_dir}: the training run's settings differ from the model's ({', '.join(different)}); "
            "give the folder of the run that exported the model."
        )
    evaluator = inputs.evaluator or EvaluatorSettings()
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
        "configuration": model_facts.describe_config(config),
        "configuration_sha256": data_facts.hash_text(to_canonical_json(config)),
        "training": training,
        "evaluation": evaluation,
        "wanted_precision": inputs.evaluator.wanted_precision if inputs.evaluator else None,
        "export": export,
        "lineage": [list(line) for line in inputs.lineage],
        "config": to_dict(config),
    }
    return {**card, "limits": find_limits(card, evaluator.min_slice_count)}


def write_card(card: Mapping[str, Any], folder: str) -> None:
    """Write the three files into `folder`, the page last, and create the folder if needed."""
    text = format_markdown(card)
    contents = {
        CARD_JSON: json.dumps(card, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        CARD_MARKDOWN: text,
        CARD_PAGE: format_page(card, text),
    }
    open_storage(folder).replace_files({name: each.encode("utf-8", "replace") for name, each in contents.items()})


def _describe_data(inputs: CardInputs, report: Mapping[str, Any] | None) -> dict[str, Any]:
    is_trained_on = None
    if inputs.model_run_dir:
        files = model_facts.read_trained_files(inputs.model_run_dir)
        is_trained_on = data_facts.is_trained_on(files, inputs.train_splits, inputs.examples_uris)
    return {
        "splits": data_facts.describe_splits(report, inputs.examples_uris),
        "train_split": report["train_split"] if report else inputs.train_splits[0],
        "sources": [dict(source) for source in inputs.sources],
        "span": report["span"] if report else None,
        "ingestion": data_facts.read_ingestion(inputs.rejects_dir) if inputs.rejects_dir else None,
        "health": {key: report[key] for key in ("verdict", "sentence", "findings")} if report else None,
        "is_what_was_trained_on": is_trained_on,
    }
