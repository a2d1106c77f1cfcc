"""Evaluate detections: measure, compare, decide. The result contains everything that is reported.

Independent of files, Beam and TensorFlow.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from detloom.components.evaluator.baseline_comparison import Comparison, SharedClasses, compare, compare_with_constant
from detloom.components.evaluator.blessing import BlessingDecision, decide
from detloom.components.evaluator.gates import NO_COSTS, GateEvidence, ModelCosts, OtherForm, needs_constant
from detloom.components.evaluator.measurements import Measurements, Split, measure
from detloom.components.properties import ComponentParams
from detloom.schemas.contracts.detections import TFLITE_INT8
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates
from detloom.trainer_module.evaluation.coco_images import ImageDetections
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.matches import Columns

ImageKind = Literal["false", "missed", "better", "worse", "first"]


@dataclass(frozen=True, kw_only=True)
class EvaluatorParams(ComponentParams):
    """Settings of an evaluation.

    Attributes:
        label_map: content of the data's label map, in protobuf text format; the model must have the same classes. Empty
            if the examples have a `label_map.pbtxt`.
    """

    split: str = "test"
    settings: EvaluatorSettings = field(default_factory=EvaluatorSettings)
    gates: Gates = field(default_factory=Gates)
    label_map: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportObject:
    """An object that the report draws over an example image.

    Attributes:
        layer: ground truth, or detections of one of the models.
        outcome: "plain" for ground truth; "ignored" for a detection on a crowd.
        is_subject: the error for which the image was selected.
        box_xywh_px: in pixels of the JPEG.
        label: class name and score.
        steps: of a detection, its step on the slider of its model (see `ScoreSteps.steps_of`); of ground truth, the
            step of the detection that each model matches to it, 0 without one.
        mask_uri: PNG over `mask_area_px`; empty without a mask.
        points_xy_px: keypoints that are drawn.
    """

    layer: Literal["truth", "candidate", "baseline"]
    outcome: Literal["plain", "crowd", "true", "false", "ignored"]
    box_xywh_px: tuple[float, float, float, float]
    label: str
    steps: tuple[int, ...]
    is_subject: bool = False
    mask_uri: str = ""
    points_xy_px: tuple[tuple[float, float], ...] = ()

    @property
    def mask_area_px(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the whole pixels of the box, at least one."""
        x, y, width, height = self.box_xywh_px
        left, top = int(x), int(y)
        return left, top, max(int(x + width), left + 1), max(int(y + height), top + 1)


@dataclass(frozen=True, kw_only=True)
class ReportImage:
    """One example image of the report, with the objects that are drawn over it.

    Attributes:
        name: name of the image.
        text: caption.
        uri: JPEG as a data URI.
        size_wh: size of the JPEG in pixels.
    """

    kind: ImageKind
    name: str
    text: str
    uri: str
    size_wh: tuple[int, int]
    objects: tuple[ReportObject, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Everything that is reported.

    Attributes:
        file_names: source id of each image, in the order of `split`.
        detections, baseline_detections: detections of both models, in the same order.
        baseline: None without a baseline, or if it has other classes; `comparison` then has what can be compared.
        variants: COCO metrics of the candidate's other forms, by name: TFLite files, and `other_form`.
        pipeline: name of the pipeline for the title of the page; may be empty.
        lines: facts about the run as (name, value), shown at the end of the page.
        data_health: checks of DatasetValidator's report as (name, value, verdict); may be empty.
        training: training curves by name as (step, value); may be empty.
    """

    split: Split
    file_names: Sequence[str]
    detections: Sequence[ImageDetections]
    candidate: Measurements
    baseline: Measurements | None
    comparison: Comparison
    decision: BlessingDecision
    baseline_detections: Sequence[ImageDetections] = ()
    candidate_costs: ModelCosts = NO_COSTS
    baseline_costs: ModelCosts = NO_COSTS
    variants: Mapping[str, CocoMetrics] = field(default_factory=dict)
    other_form: OtherForm | None = None
    pipeline: str = ""
    lines: Sequence[tuple[str, str]] = ()
    data_health: Sequence[tuple[str, str, str]] = ()
    training: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """Detections of a model on the images of a split (in its order), their measurements, and the model's costs."""

    detections: Sequence[ImageDetections]
    measurements: Measurements
    costs: ModelCosts = NO_COSTS


def measure_model(
    split: Split,
    detections: Sequence[ImageDetections],
    settings: EvaluatorSettings,
    costs: ModelCosts = NO_COSTS,
    *,
    matches: Mapping[str, Columns] | None = None,
) -> MeasuredModel:
    """Measure a model with the settings of a run file's `evaluator`.

    Args:
        matches: see `measure`.

    Raises:
        InputError: a slice feature that the data lack, a class id that the label map lacks.
    """
    measurements = measure(split, detections, settings, matches or {})
    return MeasuredModel(detections=detections, measurements=measurements, costs=costs)


def assess(
    split: Split,
    file_names: Sequence[str],
    candidate: MeasuredModel,
    baseline: MeasuredModel | None,
    gates: Gates,
    *,
    shared: SharedClasses | None = None,
    baseline_problem: str | None = None,
    is_blessed_already: bool = False,
    contract_problem: str | None = None,
    variants: Mapping[str, CocoMetrics] | None = None,
    other_form: OtherForm | None = None,
    today: datetime.date | None = None,
) -> EvaluationResult:
    """Compare the models and decide on the blessing.

    Args:
        shared: classes on which the baseline was measured; None if both models have the same classes.
        baseline_problem: why an existing baseline was not measured, as the end of a sentence.
        is_blessed_already: see `GateEvidence`.
        contract_problem: how the candidate violates the serving contract, as a sentence.
        variants, other_form: see `EvaluationResult`.
        today: date used to check whether an override is still valid; None means the current date.
    """
    before = baseline.measurements if baseline else None
    costs_before = baseline.costs if baseline else NO_COSTS
    comparison = compare(candidate.measurements, before, split.label_map, gates.baseline, shared)
    scope = ""
    if shared is not None:
        scope = f" on the {shared.label_map.num_classes} of {split.label_map.num_classes} classes that both have"
    int8 = (variants or {}).get(TFLITE_INT8)
    gain = None
    if needs_constant(gates, is_blessed_already=is_blessed_already):
        gain = compare_with_constant(candidate.measurements, candidate.detections, split, gates.baseline)
    evidence = GateEvidence(
        candidate=candidate.measurements,
        baseline=before,
        compared=shared.candidate if shared else None,
        scope=scope,
        baseline_problem=baseline_problem,
        is_blessed_already=is_blessed_already,
        ap_change=comparison.ap_change,
        gain_over_constant=gain,
        costs=candidate.costs,
        baseline_costs=costs_before,
        contract_problem=contract_problem,
        int8_ap=int8.AP if int8 is not None and int8.explain("AP") is None else None,
        other_form=other_form,
    )
    return EvaluationResult(
        split=split,
        file_names=file_names,
        detections=candidate.detections,
        candidate=candidate.measurements,
        baseline=before if shared is None else None,
        comparison=comparison,
        decision=decide(evidence, gates, today or datetime.date.today()),
        baseline_detections=baseline.detections if baseline and shared is None else (),
        candidate_costs=candidate.costs,
        baseline_costs=costs_before,
        variants=variants or {},
        other_form=other_form,
    )
