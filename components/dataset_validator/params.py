"""Parameters of DatasetValidator."""

from dataclasses import dataclass

from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.properties import ComponentParams
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import MAX_PIXELS
from detloom.schemas.run_file.data_checks import DataChecks


@dataclass(frozen=True, kw_only=True)
class DatasetValidatorParams(ComponentParams):
    """Requirements on a data set and the severity of each check.

    Attributes:
        required_splits: splits that must exist and contain boxes.
        train_split: split used for training; other splits must not share images with it.
        model_input: None if no model is known; checks that need one are skipped.
        max_pixels: larger images are not decoded, neither for the perceptual hash nor for the page.
        history: folder or URL that keeps each span's report for the next span, and the page of data that failed;
            empty if a Resolver finds the earlier report and the outputs of failed nodes are kept.
        evaluation: needs of the model's evaluation in the data.
        label_map: content of the label map, in protobuf text format; empty reads `label_map.pbtxt` in the examples.
    """

    required_splits: tuple[str, ...] = ("train", "eval")
    train_split: str = "train"
    checks: DataChecks = DataChecks()
    model_input: ModelInput | None = None
    max_pixels: int = MAX_PIXELS
    history: str = ""
    evaluation: EvaluationRequirements = EvaluationRequirements()
    label_map: str = ""

    def __post_init__(self) -> None:
        if not self.required_splits or not all(self.required_splits):
            raise InputError(f"required_splits: got {list(self.required_splits)}, allowed: at least one name.")
        if self.max_pixels < 1:
            raise InputError(f"max_pixels: got {self.max_pixels}, allowed: 1 and up.")
        object.__setattr__(self, "required_splits", tuple(self.required_splits))
