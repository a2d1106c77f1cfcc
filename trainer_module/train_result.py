"""What a training ended with."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from detloom.trainer_module.coco_metrics import CocoMetrics
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.freezing import PartCounts
from detloom.trainer_module.performance import PerformanceSummary

SUMMARY_FILE = "training_summary.json"  # written last: a run that has it is finished


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What training ended with; `detector` holds the best weights, and computes in float32.

    Attributes:
        best: metrics on the eval split at `best_step`, of the moving average of the weights if that is what is used.
        num_steps: steps done; fewer than asked for after early stopping.
        stopped_early: whether `train.early_stopping` ended it.
        performance: of this process; a run that was resumed counts from there.
        num_boxes_dropped: boxes left out of training because a picture had more than `max_number_of_boxes`.
        num_incidents: how often loss or gradients were not finite.
        trained: by part, what was trained.
    """

    detector: Detector
    best: CocoMetrics
    best_step: int
    num_steps: int
    stopped_early: bool
    performance: PerformanceSummary
    num_boxes_dropped: int
    num_incidents: int
    trained: tuple[PartCounts, ...]

    @property
    def step_seconds(self) -> float:
        """Median time of a training step."""
        return self.performance.median_step_seconds

    @property
    def images_per_second(self) -> float:
        """Of the steps, without evaluation."""
        return self.performance.images_per_second

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **plain,
            "detector": self.detector.network.name,
            "best": self.best.to_dict(),
            "performance": self.performance.to_dict(),
            "trained": [dataclasses.asdict(part) for part in self.trained],
        }
