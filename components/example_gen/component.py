"""Define DetectionExampleGen, the TFX component."""

from typing import ClassVar

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import Channel, standard_artifacts, standard_component_specs
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import Rejects
from detloom.components.example_gen.driver import Driver, file_pattern, split_input_base
from detloom.components.example_gen.executor import EXAMPLES_KEY, Executor
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.properties import REJECTS_KEY
from detloom.schemas.errors import InputError

_PROPERTY_TYPES = {name: type(value) for name, value in ExampleGenParams(data_format="auto").to_properties().items()}


class DetectionExampleGenSpec(ComponentSpec):
    """The parameters of TFX's file-based driver, and our own."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        **standard_component_specs.FileBasedExampleGenSpec.PARAMETERS,
        **{name: ExecutionParameter(type=kind) for name, kind in _PROPERTY_TYPES.items()},
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        REJECTS_KEY: ChannelParameter(type=Rejects),
    }


class DetectionExampleGen(BaseBeamComponent):
    """A TFX component that converts labelled images to tf.Examples: one folder per split, and the label map.

    Outputs:
        examples: TFRecord shards, plain or GZIP, and `label_map.pbtxt`.
        rejects: every rejected record and box with its reason, and the counts.
    """

    SPEC_CLASS = DetectionExampleGenSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        input_base: str,
        params: ExampleGenParams,
        range_config: range_config_pb2.RangeConfig | None = None,
    ) -> None:
        """Create the component.

        Args:
            input_base: the data folder; it may contain {SPAN} and {VERSION}, of which the latest is used.
            range_config: selects another span than the latest (`static_range` with equal start and end).
        """
        base, rest = split_input_base(input_base)
        if params.num_spans > 1 and not rest:
            raise InputError(
                f"num_spans: got {params.num_spans} for {input_base!r}, allowed: 1 for a path without {{SPAN}}."
            )
        patterns = [example_gen_pb2.Input.Split(name="data", pattern=file_pattern(rest))]
        super().__init__(
            spec=DetectionExampleGenSpec(
                input_base=base,
                input_config=example_gen_pb2.Input(splits=patterns),
                output_config=example_gen_pb2.Output(),
                output_data_format=example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE,
                output_file_format=example_gen_pb2.FileFormat.FORMAT_TFRECORDS_GZIP,
                range_config=range_config,
                examples=Channel(type=standard_artifacts.Examples),
                rejects=Channel(type=Rejects),
                **params.to_properties(),
            )
        )
