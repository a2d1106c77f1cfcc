"""From a card to what it looks like: which section says what. Plain texts, for Markdown and for the page alike."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from detloom.components.evaluator.decision import Decision
from detloom.components.evaluator.report_views import format_mib, headline
from detloom.components.model_card.blocks import Block, Bullets, Code, Document, Facts, Folded, Heading, Section, Text
from detloom.components.model_card.evaluation_view import evaluation_blocks
from detloom.components.model_card.tables import classes_table, signature_table, splits_table, variants_table
from detloom.components.model_card.training_facts import format_learning_rate
from detloom.components.pages.formats import format_count, format_number, format_share, format_signed

Json = Mapping[str, Any]

_NOT_STATED = "not stated"
_NOT_RECORDED = "not recorded in the export"
_STATED_NAMES = {
    "purpose": "Purpose",
    "intended_use": "Intended use",
    "out_of_scope": "Out of scope",
    "owners": "Owners",
    "contact": "Contact",
    "license": "License of the model",
    "data_license": "License of the data",
    "data_source": "Source of the data",
}


def build_document(card: Json) -> Document:
    evaluation = card["evaluation"]
    title, verdict = headline(_decision(evaluation)) if evaluation else ("Not evaluated", "off")
    return Document(
        title=card["name"],
        verdict=verdict,
        summary=evaluation["decision"]["sentence"] if evaluation else f"{title}: no evaluation was given.",
        key_numbers=_key_numbers(card),
        sections=[
            Section("Use", [*_use_blocks(card)]),
            Section("Limits", [Bullets([*card["stated"]["limits"], *card["limits"]])]),
            Section("What it detects", [*_class_blocks(card)]),
            Section("Evaluation", [*(evaluation_blocks(card) if evaluation else [Text("No evaluation was given.")])]),
            Section("Data", [*_data_blocks(card["data"])]),
            Section("Training", [*_training_blocks(card["configuration"], card["training"])]),
            Section("Export", [*_export_blocks(card)]),
            Section("Provenance", [*_provenance_blocks(card)]),
        ],
    )


def _decision(evaluation: Json) -> Decision:
    return Decision.from_dict({key: value for key, value in evaluation["decision"].items() if key != "sentence"})


def _key_numbers(card: Json) -> list[tuple[str, str, str]]:
    evaluation = card["evaluation"]
    numbers = [("Classes", format_count(card["label_map"]["num_classes"]), "")]
    if evaluation is None:
        return numbers
    for name in ("AP50", "AP"):
        metric = evaluation["metrics"][name]
        ends = f"{format_number(metric['low'])} to {format_number(metric['high'])}" if metric["low"] is not None else ""
        numbers.insert(0, (name, format_number(metric["value"]), ends))
    if evaluation["comparison"]:
        change = evaluation["comparison"]["AP"]
        ends = f"{format_signed(change['low'])} to {format_signed(change['high'])}" if change["low"] is not None else ""
        numbers.insert(2, ("AP against the baseline", format_signed(change["value"]), ends))
    if evaluation["latency"]:
        numbers.append(("Median latency", f"{evaluation['latency']['median_ms']:,.1f} ms", "one image"))
    if evaluation["model_bytes"] is not None:
        numbers.append(("Model", format_mib(evaluation["model_bytes"]), ""))
    return numbers


def _use_blocks(card: Json) -> Iterator[Block]:
    stated = card["stated"]
    rows = []
    for key, name in _STATED_NAMES.items():
        value = ", ".join(stated[key]) if key == "owners" else stated[key]
        rows.append((name, value.strip() or _NOT_STATED))
    yield Facts([*rows, *([] if stated["citation"].strip() else [("Citation", _NOT_STATED)])])
    if stated["citation"].strip():
        yield Heading("Citation")
        yield Code(stated["citation"].strip("\n"))


def _class_blocks(card: Json) -> Iterator[Block]:
    yield Text(f"{format_count(len(card['classes']))} classes, with the ids that the model answers with.")
    yield classes_table(card["classes"])
    if card["classes"][0]["num_boxes_by_split"] is None:
        yield Text("Boxes are not counted here: no report of the data was given.", is_soft=True)


def _data_blocks(data: Json) -> Iterator[Block]:
    if data["splits"]:
        yield splits_table(data["splits"])
        yield Text("A fingerprint is a SHA-256 over names, sizes and beginnings of the files.", is_soft=True)
    else:
        yield Text("No examples and no report of the data were given: what the data hold is not known.")
    rows = [(f"Examples, {key}", text) for source in data["sources"] for key, text in _source_rows(source)]
    if data["span"] is not None and not any(source["span"] is not None for source in data["sources"]):
        rows.append(("Span", str(data["span"])))
    rows += _ingestion_rows(data["ingestion"])
    if data["health"]:
        rows.append(("Checks of the data", f"{data['health']['verdict']}: {data['health']['sentence']}"))
    trained = {True: "yes", False: "no, other files", None: "not known"}[data["is_what_was_trained_on"]]
    yield Facts([*rows, ("These files were trained on", trained)])
    if data["health"] is None:
        yield Text("The health of the data is not known: no report of it was given.", is_soft=True)
    elif data["health"]["findings"]:
        yield Heading("Findings")
        yield Bullets(
            [f"{each['title']} ({each['status']}): {each['sentence']}" for each in data["health"]["findings"]]
        )


def _source_rows(source: Json) -> Iterator[tuple[str, str]]:
    named = (("artifact_id", "artifact"), ("span", "span"), ("version", "version"), ("files", "files ingested"))
    for key, name in named:
        if source[key] is not None:
            yield name, str(source[key])


def _ingestion_rows(ingestion: Json | None) -> list[tuple[str, str]]:
    if ingestion is None:
        return [("Refused by ingestion", "not known: its report was not given")]
    refused = (
        f"{format_count(ingestion['num_records_refused'])} of {format_count(ingestion['num_records'])} records "
        f"({format_share(ingestion['share_of_records_refused'])}), {format_count(ingestion['num_boxes_refused'])} of "
        f"{format_count(ingestion['num_boxes'])} boxes ({format_share(ingestion['share_of_boxes_refused'])})"
    )
    reasons = ", ".join(f"{name} {format_count(value)}" for name, value in ingestion["refused_by_reason"].items())
    rows = [("Format", ingestion["data_format"]), ("Refused by ingestion", refused)]
    rows += [("Reasons", reasons)] if reasons else []
    return rows + ([("Folders merged", ", ".join(ingestion["subfolders"]))] if ingestion["subfolders"] else [])


def _training_blocks(settings: Json, training: Json | None) -> Iterator[Block]:
    neck = f", {settings['neck']}" if settings["neck"] else ""
    yield Facts(
        [
            (
                "Detector",
                f"{settings['architecture']}, {settings['backbone']}{neck}, depth multiplier "
                f"{settings['depth_multiplier']:g}",
            ),
            ("Input", settings["input"]),
            ("Steps", f"{format_count(settings['num_steps'])}, of {format_count(settings['batch_size'])} images each"),
            ("Optimizer", settings["optimizer"]),
            ("Learning rate", format_learning_rate(settings["learning_rate"])),
            ("Augmentations", ", ".join(settings["augmentations"]) or "none"),
            ("Started from", settings["fine_tune_checkpoint"] or "random weights"),
            ("Precision", settings["precision"]),
            ("Weights exported", "their moving average" if settings["moving_average"] else "as they were trained"),
            ("Seed", str(settings["seed"])),
        ]
    )
    if training is None:
        yield Text("What the training measured is not known: its folder was not given.", is_soft=True)
        return
    yield Heading("What was measured")
    yield Facts(_measured_rows(settings, training))


def _measured_rows(settings: Json, training: Json) -> list[tuple[str, str]]:
    early = ", stopped early" if training["stopped_early"] else ""
    last = ", of the last of several processes" if training["is_resumed"] else ""
    best = f"AP {format_number(_measured(training['best_AP']))}, AP50 {format_number(_measured(training['best_AP50']))}"
    memory = [f"{format_mib(training['peak_host_bytes'])} of host memory"]
    memory += [f"{format_mib(value)} of {device}" for device, value in training["peak_device_bytes"].items()]
    parameters = f"{format_count(training['num_trained_parameters'])} of {format_count(training['num_parameters'])}"
    return [
        ("Network", training["detector"]),
        ("Parameters trained", parameters),
        ("Steps done", f"{format_count(training['num_steps'])}{early}"),
        ("Best step", f"{format_count(training['best_step'])}, by {settings['best_metric']} on the eval split"),
        ("Eval split there", f"{best}, {format_count(training['num_eval_images'])} images"),
        ("Time", f"{_format_duration(training['seconds'])}{last}"),
        ("Speed", f"{training['images_per_second']:,.1f} images/s in training steps"),
        ("Peak memory", ", ".join(memory)),
        ("Ended", training["ended"] or "not known: there is no log"),
    ]


def _export_blocks(card: Json) -> Iterator[Block]:
    export = card["export"]
    yield signature_table(export["signatures"])
    evaluation = card["evaluation"]
    if export["tflite"]:
        yield Heading("TensorFlow Lite variants")
        yield variants_table(export["tflite"], evaluation)
    else:
        yield Text("There are no TensorFlow Lite variants.", is_soft=True)
    if export["onnx_bytes"] is not None:
        yield Text(
            f"There is an ONNX file of {export['onnx_bytes'] / 1e6:.1f} MB, which was not evaluated.", is_soft=True
        )


def _provenance_blocks(card: Json) -> Iterator[Block]:
    versions = ", ".join(f"{name} {version or _NOT_RECORDED}" for name, version in sorted(card["versions"].items()))
    yield Facts(
        [
            ("Exported", card["created"] or _NOT_RECORDED),
            ("Versions", versions),
            ("Training code", card["trainer_fingerprint"] or "no fingerprint given"),
            ("Label map, SHA-256", card["label_map"]["sha256"]),
            ("Configuration, SHA-256", card["configuration_sha256"]),
            *((name, value) for name, value in card["lineage"]),
            ("Card written by", card["card_written_by"]),
        ]
    )
    config = json.dumps(card["config"], sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    yield Folded("The whole configuration", config)


def _measured(value: float | None) -> float | None:
    """None for the COCO API's -1."""
    return None if value is None or value < 0 else value


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
