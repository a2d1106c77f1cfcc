"""Tables of a card, as values for `blocks.Table`."""

from collections.abc import Mapping, Sequence
from typing import Any

from detloom.components.evaluator.report_views import (
    MAX_ROWS,
    change_of,
    columns_of,
    format_mib,
    name_cell,
    number_cell,
)
from detloom.components.model_card.blocks import Table
from detloom.components.pages.formats import format_count, format_signed

Json = Mapping[str, Any]

_NOTHING = "–"
_TEXT = {"is_number": False}


def classes_table(classes: Sequence[Json]) -> Table:
    """A row a class in the order of ids, with its boxes by split where they are known."""
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
    """A row an input of each signature, then the outputs, those that all signatures have only once."""
    rows = [_tensor_row(each["name"], "in", tensor) for each in signatures for tensor in each["inputs"]]
    is_same = all(each["outputs"] == signatures[0]["outputs"] for each in signatures)
    for each in signatures[:1] if is_same else signatures:
        name = "all" if is_same and len(signatures) > 1 else each["name"]
        rows += [_tensor_row(name, "out", tensor) for tensor in each["outputs"]]
    titles, shown = ("Signature", "", "Name", "Type", "Meaning"), rows[:MAX_ROWS]
    return Table([{"title": title, **_TEXT} for title in titles], shown, num_more=len(rows) - len(shown))


def _tensor_row(signature: str, direction: str, tensor: Json) -> list[Json]:
    texts = (signature, direction, tensor["name"], _format_type(tensor))
    return [*map(name_cell, texts), {"text": tensor["meaning"] or _NOTHING}]


def variants_table(variants: Sequence[Json], evaluation: Json | None) -> Table:
    """Size, AP and what it lost against the SavedModel; a dash where it was not evaluated."""
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
    return Table(columns_of("Variant", "Size", "AP", "AP50", "AP against the SavedModel"), rows)


def _format_id(value: float | None) -> str:
    """Ids have no separators between thousands."""
    return _NOTHING if value is None else str(value)


def _format_type(tensor: Json) -> str:
    if tensor["shape"] is None:
        return str(tensor["dtype"])
    return f"{tensor['dtype']} [{', '.join('?' if size is None else str(size) for size in tensor['shape'])}]"
