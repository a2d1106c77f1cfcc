"""Build the document of a card: its sections as plain texts, for Markdown and for the page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.report.tables import MAX_ROWS, change_of, columns_of, name_cell, number_cell
from detloom.components.evaluator.report.views import format_mib, headline
from detloom.components.model_card.evaluation_view import evaluation_blocks
from detloom.components.model_card.model_facts import format_learning_rate
from detloom.components.model_card.render import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Folded,
    Heading,
    Section,
    Table,
    Text,
)
from detloom.components.pages.formats import format_count, format_number, format_share, format_signed
from detloom.schemas.reading.format_duration import format_duration

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
_MISSING = "–"
_TEXT = {"is_number": False}


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
            Section("Classes", [*_class_blocks(card)]),
            Section("Evaluation", [*(evaluation_blocks(card) if evaluation else [Text("No evaluation was given.")])]),
            Section("Data", [*_data_blocks(card["data"])]),
            Section("Training", [*_training_blocks(card["configuration"], card["training"])]),
            Section("Export", [*_export_blocks(card)]),
            Section("Provenance", [*_provenance_blocks(card)]),
        ],
    )


def _decision(evaluation: Json) -> BlessingDecision:
    return BlessingDecision.from_dict(
        {key: value for key, value in evaluation["decision"].items() if key != "sentence"}
    )


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
        numbers.insert(2, ("Change of AP from the baseline", format_signed(change["value"]), ends))
    for key, name in (("masks", "Mask AP"), ("keypoints", "Keypoint AP")):
        if evaluation.get(key):  # absent for detectors of boxes
            numbers.append((name, format_number(evaluation[key][0]["value"]), ""))
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
    yield Text(f"{format_count(len(card['classes']))} classes, with the ids that the model returns.")
    yield classes_table(card["classes"])
    if card["classes"][0]["num_boxes_by_split"] is None:
        yield Text("The numbers of boxes are unknown: no data set report was given.", is_soft=True)


def _data_blocks(data: Json) -> Iterator[Block]:
    if data["splits"]:
        yield splits_table(data["splits"])
        yield Text("A fingerprint is a SHA-256 of the names, sizes and first bytes of the files.", is_soft=True)
    else:
        yield Text("The data are unknown: neither examples nor a data set report were given.")
    rows = [(f"Examples, {key}", text) for source in data["sources"] for key, text in _source_rows(source)]
    if data["span"] is not None and not any(source["span"] is not None for source in data["sources"]):
        rows.append(("Span", str(data["span"])))
    rows += _ingestion_rows(data["ingestion"])
    if data["health"]:
        rows.append(("Data set checks", f"{data['health']['verdict']}: {data['health']['sentence']}"))
    trained = {True: "yes", False: "no, other files", None: "unknown"}[data["is_what_was_trained_on"]]
    yield Facts([*rows, ("Model was trained on these files", trained)])
    if data["health"] is None:
        yield Text("The results of the data set checks are unknown: no data set report was given.", is_soft=True)
    elif data["health"]["findings"]:
        yield Heading("Findings")
        yield Bullets(
            [f"{each['title']} ({each['status']}): {each['sentence']}" for each in data["health"]["findings"]]
        )


def _source_rows(source: Json) -> Iterator[tuple[str, str]]:
    named = (("artifact_id", "artifact"), ("span", "span"), ("version", "version"), ("files", "ingested files"))
    for key, name in named:
        if source[key] is not None:
            yield name, str(source[key])


def _ingestion_rows(ingestion: Json | None) -> list[tuple[str, str]]:
    if ingestion is None:
        return [("Rejected by ingestion", "unknown: no ingestion report was given")]
    rejected = (
        f"{format_count(ingestion['num_records_refused'])} of {format_count(ingestion['num_records'])} records "
        f"({format_share(ingestion['share_of_records_refused'])}), {format_count(ingestion['num_boxes_refused'])} of "
        f"{format_count(ingestion['num_boxes'])} boxes ({format_share(ingestion['share_of_boxes_refused'])})"
    )
    reasons = ", ".join(f"{name} {format_count(value)}" for name, value in ingestion["refused_by_reason"].items())
    rows = [("Format", ingestion["data_format"]), ("Rejected by ingestion", rejected)]
    rows += [("Reasons", reasons)] if reasons else []
    return rows + ([("Merged folders", ", ".join(ingestion["subfolders"]))] if ingestion["subfolders"] else [])


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
            ("Steps", f"{format_count(settings['num_steps'])}, batch size {format_count(settings['batch_size'])}"),
            ("Optimizer", settings["optimizer"]),
            ("Learning rate", format_learning_rate(settings["learning_rate"])),
            ("Augmentations", ", ".join(settings["augmentations"]) or "none"),
            ("Initial weights", settings["fine_tune_checkpoint"] or "random"),
            ("Precision", settings["precision"]),
            ("Exported weights", "moving average" if settings["moving_average"] else "trained weights"),
            ("Seed", str(settings["seed"])),
        ]
    )
    if training is None:
        yield Text("The results of training are unknown: no folder of the training run was given.", is_soft=True)
        return
    yield Heading("Results of training")
    yield Facts(_measured_rows(settings, training))


def _measured_rows(settings: Json, training: Json) -> list[tuple[str, str]]:
    early = ", stopped early" if training["stopped_early"] else ""
    last = " in the last process; training was resumed" if training["is_resumed"] else ""
    best = f"AP {format_number(_measured(training['best_AP']))}, AP50 {format_number(_measured(training['best_AP50']))}"
    memory = [f"{format_mib(training['peak_host_bytes'])} of host memory"]
    memory += [f"{format_mib(value)} of {device}" for device, value in training["peak_device_bytes"].items()]
    parameters = f"{format_count(training['num_trained_parameters'])} of {format_count(training['num_parameters'])}"
    return [
        ("Network", training["detector"]),
        ("Trained parameters", parameters),
        ("Completed steps", f"{format_count(training['num_steps'])}{early}"),
        ("Best step", f"{format_count(training['best_step'])}, by {settings['best_metric']} on the eval split"),
        ("Eval split at the best step", f"{best}, {format_count(training['num_eval_images'])} images"),
        ("Time", f"{format_duration(training['seconds'])}{last}"),
        ("Speed", f"{training['images_per_second']:,.1f} images/s in training steps"),
        ("Peak memory", ", ".join(memory)),
        ("Ended", training["ended"] or "unknown: no log was found"),
    ]


def _export_blocks(card: Json) -> Iterator[Block]:
    export = card["export"]
    yield signature_table(export["signatures"])
    evaluation = card["evaluation"]
    if export["tflite"]:
        yield Heading("TensorFlow Lite variants")
        yield variants_table(export["tflite"], evaluation)
    else:
        yield Text("No TensorFlow Lite variants were exported.", is_soft=True)
    if export["onnx_bytes"] is not None:
        size = f"{export['onnx_bytes'] / 1e6:.1f} MB"
        yield Text(f"An ONNX file of {size} was exported; it was not evaluated.", is_soft=True)


def _provenance_blocks(card: Json) -> Iterator[Block]:
    versions = ", ".join(f"{name} {version or _NOT_RECORDED}" for name, version in sorted(card["versions"].items()))
    yield Facts(
        [
            ("Exported", card["created"]),
            ("Versions", versions),
            ("Training code fingerprint", card["trainer_fingerprint"] or "not given"),
            ("Label map, SHA-256", card["label_map"]["sha256"]),
            ("Configuration, SHA-256", card["configuration_sha256"]),
            *((name, value) for name, value in card["lineage"]),
            ("Card written by", card["card_written_by"]),
        ]
    )
    config = json.dumps(card["config"], sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    yield Folded("Full configuration", config)


def _measured(value: float | None) -> float | None:
    """Convert the COCO API's -1 to None."""
    return None if value is None or value < 0 else value


def classes_table(classes: Sequence[Json]) -> Table:
    """Return one row per class in the order of ids, with its boxes by split if known."""
    splits = list(classes[0]["num_boxes_by_split"] or ())
    rows = [
        [
            name_cell(each["name"]),
            number_cell(each["id"], _format_id),
            *(number_cell(each["num_boxes_by_split"][split], format_count) for split in splits),
        ]
        for each in classes[:MAX_ROWS]
    ]
    columns = columns_of("Class", "Id", *(f"Boxes, {split}" for split in splits))
    return Table(columns, rows, num_more=len(classes) - len(rows))


def splits_table(splits: Sequence[Json]) -> Table:
    rows = [
        [
            name_cell(each["name"]),
            *(number_cell(each[key], format_count) for key in ("num_images", "num_boxes", "num_without_boxes")),
            number_cell(each["num_files"], format_count),
            {"text": each["sha256"] or "not given"},
        ]
        for each in splits
    ]
    columns = columns_of("Split", "Images", "Boxes", "Images without boxes", "Files")
    return Table([*columns, {"title": "Fingerprint", **_TEXT}], rows)


def signature_table(signatures: Sequence[Json]) -> Table:
    """Return one row per input of each signature, then the outputs; outputs common to all signatures occur once."""
    rows = [_tensor_row(each["name"], "in", tensor) for each in signatures for tensor in each["inputs"]]
    is_same = all(each["outputs"] == signatures[0]["outputs"] for each in signatures)
    for each in signatures[:1] if is_same else signatures:
        name = "all" if is_same and len(signatures) > 1 else each["name"]
        rows += [_tensor_row(name, "out", tensor) for tensor in each["outputs"]]
    titles, shown = ("Signature", "Direction", "Name", "Type", "Meaning"), rows[:MAX_ROWS]
    return Table([{"title": title, **_TEXT} for title in titles], shown, num_more=len(rows) - len(shown))


def _tensor_row(signature: str, direction: str, tensor: Json) -> list[Json]:
    texts = (signature, direction, tensor["name"], _format_type(tensor))
    return [*map(name_cell, texts), {"text": tensor["meaning"] or _MISSING}]


def variants_table(variants: Sequence[Json], evaluation: Json | None) -> Table:
    """Return size, AP and change of AP from the SavedModel for each variant; a dash if it was not evaluated."""
    found = {each["name"]: each for each in evaluation["variants"]} if evaluation else {}
    before = evaluation["metrics"]["AP"]["value"] if evaluation else None
    rows = []
    for each in variants:
        measured = found.get(each["name"], {"AP": None, "AP50": None})
        rows.append(
            [
                name_cell(each["name"]),
                {"text": format_mib(each["bytes"]), "value": each["bytes"]},
                number_cell(measured["AP"]),
                number_cell(measured["AP50"]),
                number_cell(change_of(measured["AP"], before), format_signed),
            ]
        )
    return Table(columns_of("Variant", "Size", "AP", "AP50", "Change of AP from the SavedModel"), rows)


def _format_id(value: float | None) -> str:
    """Format an id without thousands separators."""
    return _MISSING if value is None else str(value)


def _format_type(tensor: Json) -> str:
    if tensor["shape"] is None:
        return str(tensor["dtype"])
    return f"{tensor['dtype']} [{', '.join('?' if size is None else str(size) for size in tensor['shape'])}]"
