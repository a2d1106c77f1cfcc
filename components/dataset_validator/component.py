"""DatasetValidator: the TFX component."""

from typing import ClassVar

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.types import BaseChannel, Channel, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import DatasetReport
from detloom.components.dataset_validator.executor import EXAMPLES_KEY, REPORT_KEY, Executor
from detloom.components.dataset_validator.params import DatasetValidatorParams


class DatasetValidatorSpec(ComponentSpec):
    """One examples artifact in, one report out."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        name: ExecutionParameter(type=type(value)) for name, value in DatasetValidatorParams().to_properties().items()
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {REPORT_KEY: ChannelParameter(type=DatasetReport)}


class DatasetValidator(BaseBeamComponent):
    """Checks boxes, classes and splits of the ingested examples; a check of severity "fail" can fail the node.

    Outputs:
        report: `report.json` and `report.html`.
    """

    SPEC_CLASS = DatasetValidatorSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)

    def __init__(self, examples: BaseChannel, params: DatasetValidatorParams) -> None:
        super().__init__(
            spec=DatasetValidatorSpec(examples=examples, report=Channel(type=DatasetReport), **params.to_properties())
        )
