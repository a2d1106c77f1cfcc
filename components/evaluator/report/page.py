"""Render the report page of an evaluation, and a Markdown summary for the Kubeflow UI."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from detloom.components.evaluator.evaluation import Evaluation, ReportImage
from detloom.components.evaluator.report import charts as charts
from detloom.components.evaluator.report import views as views
from detloom.components.pages.formats import (
    escape_markdown,
    escape_markdown_line,
    format_number,
    format_signed,
    shorten,
)
from detloom.components.pages.load_template import load_template

_TEMPLATE = "report.html.j2"
_MAX_IMAGE_CHARS = 4_000_000  # keeps the page below 5 MB


def format_page(evaluation: Evaluation, images: Sequence[ReportImage]) -> str:
    """Render the self-contained page; its only script sorts tables."""
    candidate, baseline, decision = evaluation.candidate, evaluation.baseline, evaluation.decision
    before = baseline.coco if baseline else None
    title, verdict = views.headline(decision)
    shown = _fit(images)
    num_boxes_by_id = {row.class_id: row.num_boxes for row in candidate.coco.per_class}
    return load_template(Path(__file__).parent, _TEMPLATE).render(
        headline=title,
        pipeline=evaluation.pipeline,
        verdict=verdict,
        decision=decision,
        key_numbers=views.key_numbers(evaluation),
        gate_rows=views.gate_rows(decision.gates),
        override=views.say_override(decision.override) if decision.override else "",
        has_baseline=baseline is not None,
        metric_rows=views.metric_rows(candidate.coco, before),
        shape_tables=views.shape_tables(candidate, baseline),
        size_rows=views.size_rows(candidate.coco, before),
        agnostic_rows=views.agnostic_rows(candidate, baseline),
        variant_rows=views.variant_rows(evaluation) if evaluation.variants else (),
        voc_rows=views.voc_rows(candidate, baseline),
        intervals=charts.interval_view(evaluation.comparison, num_boxes_by_id),
        classes=views.class_table(evaluation),
        curves=charts.curve_charts(candidate.curves, num_boxes_by_id),
        calibration=charts.calibration_view(candidate.calibration),
        errors=charts.error_view(candidate.errors, baseline.errors if baseline else None),
        confusion=charts.confusion_view(candidate.confusion),
        slices=views.slice_table(candidate, baseline),
        objects=views.object_table(candidate, baseline),
        image_groups=views.image_groups(shown),
        num_left_out=len(images) - len(shown),
        training=charts.training_charts(evaluation.training),
        health_rows=views.health_rows(evaluation.data_health),
        cost_rows=views.cost_rows(evaluation),
        lines=views.run_lines(evaluation),
    )


def _fit(images: Sequence[ReportImage]) -> list[ReportImage]:
    """Return the first images of each kind that fit on the page."""
    by_kind: dict[str, list[ReportImage]] = {}
    for image in images:
        by_kind.setdefault(image.kind, []).append(image)
    turns = [each for turn in itertools.zip_longest(*by_kind.values()) for each in turn if each is not None]
    sizes = itertools.accumulate(len(each.left_uri) + len(each.right_uri) for each in turns)
    kept = {id(each) for each, size in zip(turns, sizes, strict=True) if size <= _MAX_IMAGE_CHARS}
    return [each for each in images if id(each) in kept]


def summary_markdown(evaluation: Evaluation) -> str:
    """Format verdict, reason, gates and metrics as Markdown."""
    decision, baseline = evaluation.decision, evaluation.baseline
    lines = [f"# {views.headline(decision)[0]}", "", escape_markdown_line(decision.reason), ""]
    lines += ["| Gate | Required | Measured | Verdict |", "| --- | ---: | ---: | --- |"]
    for gate in views.gate_rows(decision.gates):
        name = escape_markdown(shorten(gate["name"]))
        lines.append(f"| {name} | {gate['required']} | {gate['measured']} | {gate['verdict_text']} |")
    names = ["Candidate", *(["Baseline", "Change"] if baseline else [])]
    lines += ["", f"| Metric | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for row in views.metric_rows(evaluation.candidate.coco, baseline.coco if baseline else None):
        cells = [format_number(row["candidate"])]
        cells += [format_number(row["baseline"]), format_signed(row["change"])] if baseline else []
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    for table in views.shape_tables(evaluation.candidate, baseline):
        for row in table["rows"][:3]:
            cells = [format_number(row["candidate"])]
            cells += [format_number(row["baseline"]), format_signed(row["change"])] if baseline else []
            lines.append(f"| {row['name']}, {table['title'].lower()} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
