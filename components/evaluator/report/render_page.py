"""Render the report page of an evaluation, and a Markdown summary for the Kubeflow UI."""

from collections.abc import Sequence
from pathlib import Path

from detloom.components.evaluator.evaluation_result import EvaluationResult, ReportImage
from detloom.components.evaluator.report import (
    baseline_intervals,
    class_and_slice_tables,
    confusion_matrix,
    curves_and_calibration,
    error_costs,
    metric_tables,
    training_data_and_costs,
    verdict_and_gates,
)
from detloom.components.evaluator.report.drawn_images import fit, image_groups, layers_of
from detloom.components.evaluator.report.score_thresholds import MIN_DRAWN_SCORE, threshold_view
from detloom.components.pages.formats import (
    escape_markdown,
    escape_markdown_line,
    format_number,
    format_signed,
    shorten,
)
from detloom.components.pages.load_template import ZOOM_SCRIPT, load_template, read_script, read_shared_script

_HERE = Path(__file__).parent
_TEMPLATE, _SCRIPT = "report.html.j2", "score_and_layers.js"


def format_page(evaluation: EvaluationResult, images: Sequence[ReportImage]) -> str:
    """Render the self-contained page."""
    candidate, baseline, decision = evaluation.candidate, evaluation.baseline, evaluation.decision
    before = baseline.coco if baseline else None
    title, verdict = verdict_and_gates.headline(decision)
    shown = fit(images)
    by_score = threshold_view(evaluation)
    num_boxes_by_id = {row.class_id: row.num_boxes for row in candidate.coco.per_class}
    return load_template(_HERE, _TEMPLATE).render(
        headline=title,
        pipeline=evaluation.pipeline,
        verdict=verdict,
        decision=decision,
        next_step=verdict_and_gates.next_step(decision),
        key_numbers=verdict_and_gates.key_numbers(evaluation),
        gate_rows=verdict_and_gates.gate_rows(decision.gates),
        override=verdict_and_gates.override_text(decision.override) if decision.override else "",
        has_baseline=baseline is not None,
        metric_rows=metric_tables.metric_rows(candidate.coco, before),
        shape_tables=metric_tables.shape_tables(candidate, baseline),
        size_rows=metric_tables.size_rows(candidate.coco, before),
        agnostic_rows=metric_tables.agnostic_rows(candidate, baseline),
        variant_rows=metric_tables.variant_rows(evaluation) if evaluation.variants else (),
        voc_rows=metric_tables.voc_rows(candidate, baseline),
        intervals=baseline_intervals.interval_view(evaluation.comparison, num_boxes_by_id),
        classes=class_and_slice_tables.class_table(evaluation),
        curves=curves_and_calibration.curve_charts(candidate.curves, num_boxes_by_id),
        calibration=curves_and_calibration.calibration_view(candidate.calibration),
        errors=error_costs.error_view(candidate.errors, baseline.errors if baseline else None),
        confusion=confusion_matrix.confusion_view(candidate.confusion),
        slices=class_and_slice_tables.slice_table(candidate, baseline),
        objects=class_and_slice_tables.object_table(candidate, baseline),
        by_score=by_score,
        image_groups=image_groups(shown, [model["start"] for model in by_score["models"]]),
        layers=layers_of(shown),
        min_drawn_score=f"{MIN_DRAWN_SCORE:g}",
        num_left_out=len(images) - len(shown),
        training=training_data_and_costs.training_charts(evaluation.training),
        health_rows=training_data_and_costs.health_rows(evaluation.data_health),
        cost_rows=training_data_and_costs.cost_rows(evaluation),
        lines=training_data_and_costs.run_lines(evaluation),
        scripts=[read_script(_HERE / _SCRIPT), read_shared_script(ZOOM_SCRIPT)],
    )


def summary_markdown(evaluation: EvaluationResult) -> str:
    """Format verdict, reason, gates and metrics as Markdown."""
    decision, baseline = evaluation.decision, evaluation.baseline
    lines = [f"# {verdict_and_gates.headline(decision)[0]}", "", escape_markdown_line(decision.reason), ""]
    lines += ["| Gate | Required | Measured | Verdict |", "| --- | ---: | ---: | --- |"]
    for gate in verdict_and_gates.gate_rows(decision.gates):
        name = escape_markdown(shorten(gate["name"]))
        lines.append(f"| {name} | {gate['required']} | {gate['measured']} | {gate['verdict_text']} |")
    names = ["Candidate", *(["Baseline", "Change"] if baseline else [])]
    lines += ["", f"| Metric | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    coco_rows = metric_tables.metric_rows(evaluation.candidate.coco, baseline.coco if baseline else None)
    rows = [(row["name"], row) for row in coco_rows]
    for table in metric_tables.shape_tables(evaluation.candidate, baseline):
        rows += [(f"{row['name']}, {table['title'].lower()}", row) for row in table["rows"][:3]]
    for name, row in rows:
        cells = [format_number(row["candidate"])]
        cells += [format_number(row["baseline"]), format_signed(row["change"])] if baseline else []
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
