"""Build the card as plain values from the folders of a run, and write its three files. No TFX."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import detloom
from detloom.components.model_card import data_facts, model_facts
from detloom.components.model_card.evaluation_facts import read_evaluation
from detloom.components.model_card.limits import find_limits
from detloom.components.model_card.model_facts import describe_export
from detloom.components.model_card.render import format_markdown, format_page
from detloom.components.properties import ComponentParams
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import ASSET_CONFIG
from detloom.schemas.reading.typed_dict import to_canonical_json, to_dict
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.model_card import CARD_JSON, CARD_MARKDOWN, CARD_PAGE, ModelCardSettings
from detloom.trainer_module.inference.model_files import read_exported_label_map

FORMAT = "detloom_model_card/1"  # the number increases when a key is removed or changes its meaning


@dataclass(frozen=True, kw_only=True)
class ModelCardParams(ComponentParams):
    """Content of a card that does not come from artifacts.

    Attributes:
        name: name of the model, which is the name of the pipeline.
        split: split used for the evaluation.
        stated: statements of the run file.
        evaluator: settings of the evaluation, needed to explain its numbers.
        trainer_fingerprint: fingerprint of the training code.
    """

    name: str
    split: str = "test"
    stated: ModelCardSettings = field(default_factory=ModelCardSettings)
    evaluator: EvaluatorSettings = field(default_factory=EvaluatorSettings)
    trainer_fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class CardInputs:
    """Sources of a card. The card names the folders that are None as not given; a given folder must be complete.

    Attributes:
        params: content that does not come from the run.
        model_dir: folder of the SavedModel.
        tflite_dir: folder of its TFLite variants, which need not exist.
        evaluation_dir: folder with the evaluator's report.
        model_run_dir: folder of the training run.
        dataset_report_dir, rejects_dir: outputs of DatasetValidator and of ingestion.
        examples_uris: roots of the examples, with one folder `Split-<name>` per split.
        sources: metadata of the examples in ML Metadata: artifact_id, span, version, files (TFX's fingerprint).
        lineage: records of model and data in ML Metadata, as (name, value).
    """

    params: ModelCardParams
    model_dir: str
    tflite_dir: str | None = None
    evaluation_dir: str | None = None
    model_run_dir: str | None = None
    dataset_report_dir: str | None = None
    rejects_dir: str | None = None
    examples_uris: Sequence[str] = ()
    sources: Sequence[Mapping[str, Any]] = ()
    lineage: Sequence[tuple[str, str]] = ()


def build_card(inputs: CardInputs) -> dict[str, Any]:
    """Build the content of the card as plain JSON values; docs/model_card.md describes the keys.

    The same folders give the same card; its time is the time of the export.

    Raises:
        InputError: if a file is missing or invalid, or if the evaluation or the data belong to another model.
    """
    params = inputs.params
    label_map = read_exported_label_map(inputs.model_dir)
    config = model_facts.read_config(f"{inputs.model_dir}/assets/{ASSET_CONFIG}")
    export = describe_export(inputs.model_dir, inputs.tflite_dir)
    report = data_facts.read_dataset_report(inputs.dataset_report_dir) if inputs.dataset_report_dir else None
    folder = inputs.evaluation_dir
    evaluation = read_evaluation(folder, label_map, params.split) if folder else None
    training = None
    if inputs.model_run_dir:
        training = model_facts.read_training(inputs.model_run_dir)
        model_facts.check_same_settings(config, inputs.model_run_dir)
    card: dict[str, Any] = {
        "format": FORMAT,
        "name": params.name,
        "created": export.pop("created"),
        "versions": export.pop("versions"),
        "trainer_fingerprint": params.trainer_fingerprint or None,
        "card_written_by": f"detloom {detloom.__version__}",
        "stated": to_dict(params.stated),
        "label_map": data_facts.describe_label_map(label_map, inputs.examples_uris),
        "classes": data_facts.describe_classes(label_map, report),
        "data": _describe_data(inputs, report),
        "configuration": model_facts.describe_config(config),
        "configuration_sha256": data_facts.hash_text(to_canonical_json(config)),
        "training": training,
        "evaluation": evaluation,
        "wanted_precision": params.evaluator.wanted_precision,
        "export": export,
        "lineage": [list(line) for line in inputs.lineage],
        "config": to_dict(config),
    }
    return {**card, "limits": find_limits(card, params.evaluator.min_slice_count)}


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
    return {
        "splits": data_facts.describe_splits(report, inputs.examples_uris),
        "train_split": report["train_split"] if report else data_facts.TRAIN_SPLITS[0],
        "sources": [dict(source) for source in inputs.sources],
        "span": report["span"] if report else None,
        "ingestion": data_facts.read_ingestion(inputs.rejects_dir) if inputs.rejects_dir else None,
        "health": {key: report[key] for key in ("verdict", "sentence", "findings")} if report else None,
        "is_what_was_trained_on": data_facts.is_trained_on(inputs.model_run_dir, inputs.examples_uris),
    }
