"""The page of an evaluation, and its short form for the Kubeflow UI."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from detloom.components.evaluator import report_charts as charts
from detloom.components.evaluator import report_views as views
from detloom.components.evaluator.evaluation import Evaluation, Picture
from detloom.components.pages.formats import format_number, format_signed, shorten
from detloom.components.pages.load_template import load_template
from detloom.components.pages.markdown_text import escape_markdown, escape_markdown_line

_TEMPLATE = "report.html.j2"
_MAX_PICTURE_CHARS = 4_000_000  # so that a page stays below 5 MB, whatever the images show


def format_page(evaluation: Evaluation, pictures: Sequence[Picture]) -> str:
    """One page that fetches nothing; its only script sorts tables."""
    candidate, baseline, decision = evaluation.candidate, evaluation.baseline, evaluation.decision
    before = baseline.coco if baseline else None
    title, verdict = views.headline(decision)
    shown = _fit(pictures)
    num_boxes_by_id = {row.class_id: row.num_boxes for row in candidate.coco.per_class}
    return load_template(Path(__file__).parent, _TEMPLATE).render(
        headline=title,
        verdict=verdict,
        decision=decision,
        key_numbers=views.key_numbers(evaluation),
        gate_rows=views.gate_rows(decision.gates),
        override=views.say_override(decision.override) if decision.override else "",
        has_baseline=baseline is not None,
        metric_rows=views.metric_rows(candidate.coco, before),
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
        picture_groups=views.picture_groups(shown),
        num_left_out=len(pictures) - len(shown),
        training=charts.training_charts(evaluation.training),
        health_rows=views.health_rows(evaluation.data_health),
        cost_rows=views.cost_rows(evaluation),
        lines=views.run_lines(evaluation),
    )


def _fit(pictures: Sequence[Picture]) -> list[Picture]:
    """Of each kind as many as fit on the page, the first ones."""
    by_kind: dict[str, list[Picture]] = {}
    for picture in pictures:
        by_kind.setdefault(picture.kind, []).append(picture)
    turns = [each for turn in itertools.zip_longest(*by_kind.values()) for each in turn if each is not None]
    sizes = itertools.accumulate(len(each.left_uri) + len(each.right_uri) for each in turns)
    kept = {id(each) for each, size in zip(turns, sizes, strict=True) if size <= _MAX_PICTURE_CHARS}
    return [each for each in pictures if id(each) in kept]


def summary_markdown(evaluation: Evaluation) -> str:
    """Verdict, reason, gates and metrics, for places that show Markdown and no page."""
    decision, baseline = evaluation.decision, evaluation.baseline
    lines = [f"# {views.headline(decision)[0]}", "", escape_markdown_line(decision.reason), ""]
    lines += ["| Gate | Asked | Found | Verdict |", "| --- | ---: | ---: | --- |"]
    for gate in views.gate_rows(decision.gates):
        name = escape_markdown(shorten(gate["name"]))
        lines.append(f"| {name} | {gate['asked']} | {gate['found']} | {gate['verdict_text']} |")
    names = ["Candidate", *(["Baseline", "Change"] if baseline else [])]
    lines += ["", f"| Metric | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for row in views.metric_rows(evaluation.candidate.coco, baseline.coco if baseline else None):
        cells = [format_number(row["candidate"])]
        cells += [format_number(row["baseline"]), format_signed(row["change"])] if baseline else []
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
