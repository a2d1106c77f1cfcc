"""Write the validation report: a JSON file for programs and a self-contained HTML page for people."""

import json
from collections.abc import Sequence
from pathlib import Path

from detloom.components.dataset_validator.findings import format_apart
from detloom.components.dataset_validator.report import page_parts
from detloom.components.dataset_validator.report.image_grid import FILTER_SCRIPT, Listed, grid_view
from detloom.components.dataset_validator.report.page_parts import DrawnImages, Json
from detloom.components.pages import charts
from detloom.components.pages.formats import VERDICT_TEXTS, format_count, format_share
from detloom.components.pages.load_template import ZOOM_SCRIPT, load_template, read_script, read_shared_script
from detloom.components.properties import DATASET_REPORT_FILE
from detloom.components.similarity.near_duplicates import MAX_BUCKET
from detloom.components.storage.storage import open_storage

REPORT_HTML = "report.html"
_HERE = Path(__file__).parent
_TEMPLATE = "report.html.j2"
MAX_SHOWN_GROUPS = 6  # groups of duplicates shown with images, exact and near each
MAX_SHOWN_MEMBERS = 4  # images per group
_MAX_ROWS = 12  # rows of the table of anchors by class, and classes in the drift chart
_HEADLINES = {
    "passed": "The data set passed validation",
    "warned": "The data set passed validation with warnings",
    "failed": "The data set failed validation",
}
_STATUS_ORDER = ("failed", "warned", "skipped", "passed", "off")
_DUPLICATE_KINDS = (("exact", "Identical files"), ("near", "Near-duplicates"))


def write_report(folder: str | Path, report: Json, images: DrawnImages, pipeline: str = "") -> None:
    """Write both files into `folder`, the page last, and create the folder if needed.

    Args:
        pipeline: name of the pipeline for the title of the page; may be empty.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    contents = {DATASET_REPORT_FILE: text, REPORT_HTML: render_html(report, images, pipeline)}
    open_storage(folder).replace_files({name: each.encode("utf-8", "replace") for name, each in contents.items()})


def render_html(report: Json, images: DrawnImages, pipeline: str = "") -> str:
    """Render the report as one HTML page without external resources."""
    splits = report["splits"]
    titles = {check["check"]: check["title"] for check in report["checks"]}
    listed = report.get("images", [])
    return load_template(_HERE, _TEMPLATE).render(
        report=report,
        headline=_HEADLINES[report["verdict"]],
        pipeline=pipeline,
        facts=_list_facts(report),
        checks=_view_checks(report["checks"]),
        grid=grid_view([Listed(**entry) for entry in listed if entry["topic"] != "duplicate"], titles, images),
        splits=list(splits),
        count_rows=page_parts.count_rows(splits),
        class_rows=page_parts.class_rows(splits),
        duplicates=_view_duplicates(report["duplicates"], report["train_split"], images),
        drift=_view_drift(report),
        anchors=_view_anchors(report["anchors"], report["train_split"]) if report["anchors"] else None,
        histograms=page_parts.split_histograms(splits),
        maps=page_parts.position_maps(splits),
        scripts=[read_script(_HERE / FILTER_SCRIPT), read_shared_script(ZOOM_SCRIPT)],
    )


def _list_facts(report: Json) -> list[tuple[str, str]]:
    sizes = [
        f"{name} {format_count(part['num_examples'])} images, {format_count(part['num_boxes'])} boxes"
        for name, part in report["splits"].items()
    ]
    facts = [("Data", "; ".join(sizes))] if sizes else []
    if report["span"] is not None:
        facts.append(("Span", str(report["span"])))
    if report["model_input"]:
        facts.append(("Model input", report["model_input"]["resizer"]))
    return facts


def _view_checks(checks: Sequence[Json]) -> list[Json]:
    """Return the rows of the table of checks, sorted by status: failed checks first."""
    shown = [
        {
            **check,
            "sentence": check["sentence"][:1].upper() + check["sentence"][1:],
            "value_text": value_text,
            "threshold_text": f"{check['bound']} {threshold_text}",
            "status_text": VERDICT_TEXTS[check["status"]],
        }
        for check in checks
        for value_text, threshold_text in [format_apart(check["value"], check["threshold"], check["unit"])]
    ]
    return sorted(shown, key=lambda check: _STATUS_ORDER.index(check["status"]))


def _view_duplicates(duplicates: Json, train_split: str, images: DrawnImages) -> list[Json]:
    shown: list[Json] = []
    seen: set[tuple[tuple[str, str], ...]] = set()
    for kind, title in _DUPLICATE_KINDS:
        found = duplicates.get(kind)
        if not found:
            continue
        groups = []
        for group in found["groups"]:
            records = [(member["split"], member["record_key"]) for member in group["members"]]
            if tuple(sorted(records)) not in seen:  # identical images are near-duplicates too, and were shown already
                groups.append((group, records))
            seen.add(tuple(sorted(records)))
        shown.append(
            {
                "title": title,
                "sentence": _duplicates_text(found, kind, train_split),
                "groups": [_view_group(group, records, images) for group, records in groups[:MAX_SHOWN_GROUPS]],
                "rest": _rest_text(found["num_groups"], min(len(groups), MAX_SHOWN_GROUPS), kind),
            }
        )
    return shown


def _duplicates_text(found: Json, kind: str, train_split: str) -> str:
    across = ", ".join(f"{name} {count}" for name, count in found["across_by_split"].items() if count)
    within = ", ".join(f"{name} {count}" for name, count in found["within_by_split"].items() if count)
    verb = "are also in" if kind == "exact" else "are near-duplicates of an image in"
    sentences = [
        f"Images of other splits that {verb} {train_split}: {across or 'none'}.",
        f"Surplus copies within a split: {within or 'none'}.",
    ]
    if kind == "near":
        compared = format_count(found["num_compared"])
        sentences.append(
            f"{compared} images were compared. Near-duplicates have perceptual hashes that differ in at most "
            f"{found['max_distance']} of 64 bits."
        )
    if not found["is_complete"]:
        sentences.append(
            f"More than {format_count(MAX_BUCKET)} images look much alike. Not all pairs of them were compared, so "
            "there may be more near-duplicates than are counted here."
        )
    if found["num_flat"]:
        sentences.append(f"{format_count(found['num_flat'])} images have too little structure to be compared.")
    return " ".join(sentences)


def _rest_text(num_groups: int, num_shown: int, kind: str) -> str:
    """Return a sentence about the groups that the page does not show."""
    rest = num_groups - num_shown
    if rest <= 0:
        return ""
    reason = "shown above as identical, or listed in" if kind == "near" else "listed in"
    groups = "group" if rest == 1 else "groups"
    return f"{format_count(rest)} more {groups}, {reason} {DATASET_REPORT_FILE} (up to a limit)."


def _view_group(group: Json, records: Sequence[tuple[str, str]], images: DrawnImages) -> Json:
    sizes = ", ".join(f"{name} {count}" for name, count in group["size_by_split"].items())
    return {
        "text": f"{group['size']} images: {sizes}",
        "entries": page_parts.image_entries(records[:MAX_SHOWN_MEMBERS], images),
    }


def _view_drift(report: Json) -> Json:
    drift = report["drift"]
    if drift["reason"]:
        return {"reason": drift["reason"]}
    thresholds = {check["check"]: check["threshold"] for check in report["checks"]}
    rows = [
        {
            "split": split,
            "name": name,
            "distance": part[f"{key}_distance"],
            "chance": part[f"{key}_chance"],
            "threshold": thresholds.get(f"{key}_drift") if split == report["train_split"] else None,
        }
        for split, part in drift["splits"].items()
        for name, key in (("classes", "class"), ("box sizes", "size"))
    ]
    shown = []
    if drift["classes"]:
        moved = sorted(drift["classes"], key=lambda row: -abs(row["share"] - row["previous_share"]))[:_MAX_ROWS]
        series = [[row[key] for row in moved] for key in ("share", "previous_share")]
        shown.append(charts.bars("Classes, largest change first", [row["name"] for row in moved], series))
    if drift["sizes"]:
        series = [drift["sizes"][key] for key in ("shares", "previous_shares")]
        shown.append(charts.histogram("Box area as a share of the image", drift["sizes"]["bins"], series))
    span = "an earlier report" if drift["previous_span"] is None else f"span {drift['previous_span']}"
    explanation = (
        f"Jensen-Shannon distance from {span}: 0 for equal distributions, 1 for distributions without overlap. "
        "“By chance” is the expected distance between two random samples of these sizes from one distribution."
    )
    return {"reason": "", "explanation": explanation, "rows": rows, "views": shown}


def _view_anchors(anchors: Json, train_split: str) -> Json:
    fit = "there are no boxes to measure"
    if anchors["num_boxes"]:
        fit = (
            f"{format_share(anchors['recall_at_50'])} of {format_count(anchors['num_boxes'])} boxes have an anchor "
            f"with an IoU of at least 0.5; the mean best IoU is {anchors['mean_best_iou']:.3f}"
        )
    better = anchors["suggestion"]
    by_class = sorted(anchors["by_class"], key=lambda row: row["recall_at_50"])
    rest = len(by_class) - _MAX_ROWS
    configured = _anchors_text(anchors["configured"])
    return {
        "sentence": f"In {train_split}, resized to the model's input size, {fit}. Configured: {configured}.",
        "suggestion": _suggestion_text(better) if better else "",
        "settings": _format_settings(better) if better else "",
        "histogram": charts.histogram(
            "IoU with the best anchor", anchors["histogram"]["bins"], [anchors["histogram"]["counts"]]
        ),
        "tables": [
            {
                "title": "By box size in the model's input, px",
                "rows": _fit_rows(anchors["by_size"], "size_px"),
                "rest": "",
            },
            {
                "title": "By class, worst first",
                "rows": _fit_rows(by_class[:_MAX_ROWS], "name"),
                "rest": f"{rest} more classes have a higher recall." if rest > 0 else "",
            },
        ],
    }


def _fit_rows(rows: Sequence[Json], name: str) -> list[Json]:
    return [
        {"name": row[name], "num_boxes": row["num_boxes"], "recall": row["recall_at_50"], "mean": row["mean_best_iou"]}
        for row in rows
    ]


def _anchors_text(settings: Json) -> str:
    ratios = ", ".join(f"{ratio:g}" for ratio in settings["aspect_ratios"])
    return (
        f"anchor_scale {settings['anchor_scale']:g}, aspect_ratios {ratios}, scales_per_octave "
        f"{settings['scales_per_octave']}, levels {settings['min_level']} to {settings['max_level']}"
    )


def _suggestion_text(better: Json) -> str:
    return (
        "Suggested settings, with at most as many anchors per location: recall "
        f"{format_share(better['recall_at_50'])} instead of {format_share(better['configured_recall_at_50'])}, mean "
        f"best IoU {better['mean_best_iou']:.3f} instead of {better['configured_mean_best_iou']:.3f}, measured on a "
        "sample of the boxes. If the number of anchors per location changes, the heads of a checkpoint can no longer "
        "be restored."
    )


def _format_settings(better: Json) -> str:
    """Format the suggested settings in pipeline.config syntax."""
    lines = [
        f"min_level: {better['min_level']}",
        f"max_level: {better['max_level']}",
        f"anchor_scale: {better['anchor_scale']:g}",
        *(f"aspect_ratios: {ratio:g}" for ratio in better["aspect_ratios"]),
        f"scales_per_octave: {better['scales_per_octave']}",
    ]
    return "multiscale_anchor_generator {\n" + "".join(f"  {line}\n" for line in lines) + "}"
