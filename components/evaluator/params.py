"""Parameters of DetectionEvaluator."""

from dataclasses import dataclass, field

from detloom.components.properties import ComponentParams
from detloom.schemas.run_file.evaluator_and_gates import Evaluator, Gates


@dataclass(frozen=True, kw_only=True)
class EvaluatorParams(ComponentParams):
    """Settings of an evaluation.

    Attributes:
        label_map: content of the data's label map, in protobuf text format; the model must have the same classes. Empty
            if the examples have a `label_map.pbtxt`.
    """

    split: str = "test"
    settings: Evaluator = field(default_factory=Evaluator)
    gates: Gates = field(default_factory=Gates)
    label_map: str = ""
