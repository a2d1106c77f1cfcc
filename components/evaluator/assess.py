"""From detections to a decision: every number, the comparison, the gates. Knows no files, no Beam and no TensorFlow."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detloom.components.evaluator.comparison import compare
from detloom.components.evaluator.decision import Evidence, decide
from detloom.components.evaluator.evaluation import Evaluation, ModelCosts
from detloom.components.evaluator.measurements import Measurements, MeasureOptions, Split, measure
from detloom.schemas.detections import TFLITE_INT8
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import Gates
from detloom.trainer_module.coco_metrics import CocoMetrics, ImageDetections


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model's detections of the images of a split, in its order, and what they amount to."""

    detections: Sequence[ImageDetections]
    measurements: Measurements
    costs: ModelCosts = field(default_factory=ModelCosts)


def measure_model(
    split: Split, detections: Sequence[ImageDetections], settings: Evaluator, costs: ModelCosts | None = None
) -> MeasuredModel:
    """All numbers that a run file's `evaluator` asks for.

    Raises:
        InputError: slices that the data do not have, a class id that the label map lacks.
    """
    options = MeasureOptions(
        image_slices=settings.image_slices,
        object_slices=settings.object_slices,
        sizes=settings.sizes,
        wanted_precision=settings.wanted_precision,
        min_slice_count=settings.min_slice_count,
    )
    return MeasuredModel(
        detections=detections, measurements=measure(split, detections, options), costs=costs or ModelCosts()
    )


def assess(
    split: Split,
    file_names: Sequence[str],
    candidate: MeasuredModel,
    baseline: MeasuredModel | None,
    gates: Gates,
    *,
    baseline_problem: str | None = None,
    is_blessed_already: bool = False,
    contract_problem: str | None = None,
    variants: Mapping[str, CocoMetrics] | None = None,
    today: datetime.date | None = None,
) -> Evaluation:
    """Compare, and decide.

    Args:
        baseline_problem: why a baseline that exists was not measured, as the end of a sentence.
        is_blessed_already: as `Evidence` has it.
        contract_problem: how the candidate breaks its contract, as a sentence.
        variants: COCO numbers of the candidate's TFLite variants, by name.
        today: decides whether an override still holds; None takes the date of this machine.
    """
    before = baseline.measurements if baseline else None
    comparison = compare(candidate.measurements, before, split.label_map, gates.baseline)
    evidence = Evidence(
        candidate=candidate.measurements,
        baseline=before,
        baseline_problem=baseline_problem,
        is_blessed_already=is_blessed_already,
        ap_change=comparison.ap_change,
        latency=candidate.costs.latency,
        baseline_latency=baseline.costs.latency if baseline else None,
        model_bytes=candidate.costs.model_bytes,
        contract_problem=contract_problem,
        int8_ap=_int8_ap(variants or {}),
    )
    return Evaluation(
        split=split,
        file_names=file_names,
        detections=candidate.detections,
        candidate=candidate.measurements,
        baseline=before,
        comparison=comparison,
        decision=decide(evidence, gates, today or datetime.date.today()),
        candidate_costs=candidate.costs,
        baseline_costs=baseline.costs if baseline else ModelCosts(),
        variants=variants or {},
    )


def _int8_ap(variants: Mapping[str, CocoMetrics]) -> float | None:
    metrics = variants.get(TFLITE_INT8)
    return metrics.AP if metrics is not None and metrics.explain("AP") is None else None
