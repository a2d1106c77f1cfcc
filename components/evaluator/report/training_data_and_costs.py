"""The end of the page: training curves, checks of the data, costs of the models and facts of the run."""

import math
from collections.abc import Iterable, Mapping, Sequence

from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.gates import NO_COSTS, ModelCosts
from detloom.components.evaluator.report.page_parts import Json
from detloom.components.evaluator.report.verdict_and_gates import NOTHING, format_mib
from detloom.components.pages.charts import PAGE_LOOK, Line, format_svg
from detloom.components.pages.formats import VERDICT_TEXTS, format_count, format_share_digits
from detloom.schemas.contracts.runtime_names import FORM_TITLES

_MAX_TRAINING_CHARTS = 24


def training_charts(training: Mapping[str, Sequence[tuple[float, float]]]) -> Json:
    """Draw a chart for each curve with at least two finite points."""
    finite = {name: [point for point in points if all(map(math.isfinite, point))] for name, points in training.items()}
    drawn = {name: sorted(points) for name, points in finite.items() if len(points) > 1}
    charts = [
        {"title": name, "svg": _training_svg(name, points), "names": [name]}
        for name, points in list(drawn.items())[:_MAX_TRAINING_CHARTS]
    ]
    return {"charts": charts, "num_more": len(drawn) - len(charts)}


def _training_svg(name: str, points: Sequence[tuple[float, float]]) -> str:
    low, high = min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points))
    first, last = min(0.0, points[0][0]), points[-1][0]
    return format_svg(
        name,
        "step",
        "",
        [Line(name=name, points=points)],
        x_range=(first, last if last > first else first + 1.0),
        y_range=(low, high if high > low else low + 1.0),
        look=PAGE_LOOK,
    )


def health_rows(data_health: Iterable[tuple[str, str, str]]) -> list[Json]:
    """Return rows of the data report; an unknown verdict is shown unchanged."""
    return [
        {
            "name": name,
            "value": value,
            "verdict": verdict if verdict in VERDICT_TEXTS else "off",
            "verdict_text": VERDICT_TEXTS.get(verdict, verdict),
        }
        for name, value, verdict in data_health
    ]


def cost_rows(evaluation: EvaluationResult) -> list[Json]:
    """Return rows with latency and size of the models; empty if nothing was measured."""
    models = [("Candidate", evaluation.candidate_costs), ("Baseline", evaluation.baseline_costs)]
    if form := evaluation.other_form:
        models.append((f"Candidate, {FORM_TITLES[form.name]}", ModelCosts(latency=form.latency)))
    return [_cost_row(name, costs) for name, costs in models if costs != NO_COSTS]


def _cost_row(name: str, costs: ModelCosts) -> Json:
    latency = costs.latency
    return {
        "name": name,
        "median": f"{latency.median_ms:,.1f} ms" if latency else NOTHING,
        "p95": f"{latency.p95_ms:,.1f} ms" if latency else NOTHING,
        "num_images": format_count(latency.num_images if latency else None),
        "size": NOTHING if costs.model_bytes is None else format_mib(costs.model_bytes),
    }


def run_lines(evaluation: EvaluationResult) -> list[tuple[str, str]]:
    resampled = evaluation.comparison.candidate
    confidence = format_share_digits(resampled.confidence)
    text = f"{confidence} % bootstrap intervals from {format_count(resampled.num_resamples)} resamples of the images"
    return [*evaluation.lines, ("Intervals", text)]
