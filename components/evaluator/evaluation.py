"""What one evaluation amounts to: the values that its files and its page are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from detloom.components.evaluator.comparison import Comparison
from detloom.components.evaluator.decision import Decision, Latency
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.trainer_module.coco_metrics import CocoMetrics, ImageDetections

PictureKind = Literal["false", "missed", "better", "worse", "first"]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of the page: two copies of it beside each other, as JPEG data URIs.

    Attributes:
        name: of the image.
        text: what there is to see.
        left_uri, right_uri: ground truth and candidate; for `better` and `worse` the baseline and the candidate.
        left_label, right_label: what they show, in a word or two.
    """

    kind: PictureKind
    name: str
    text: str
    left_uri: str
    right_uri: str
    left_label: str
    right_label: str


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """What it takes to serve a model; None is what was not measured."""

    latency: Latency | None = None
    model_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that is reported.

    Attributes:
        file_names: source id of each image, in the order of `split`.
        detections: of the candidate, in that order.
        baseline: None when there is none, or none that can be compared.
        variants: COCO numbers of the candidate's TFLite variants, by name.
        lines: facts about the run as (name, value), shown at the end of the page.
        data_health: lines of the data's report as (name, value, verdict), from DatasetValidator; may be empty.
        training: curves of the training by name as (step, value); may be empty.
    """

    split: Split
    file_names: Sequence[str]
    detections: Sequence[ImageDetections]
    candidate: Measurements
    baseline: Measurements | None
    comparison: Comparison
    decision: Decision
    candidate_costs: ModelCosts = field(default_factory=ModelCosts)
    baseline_costs: ModelCosts = field(default_factory=ModelCosts)
    variants: Mapping[str, CocoMetrics] = field(default_factory=dict)
    lines: Sequence[tuple[str, str]] = ()
    data_health: Sequence[tuple[str, str, str]] = ()
    training: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
