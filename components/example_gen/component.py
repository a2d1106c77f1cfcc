"""Define DetectionExampleGen, the TFX component, and its executor."""

import json
from dataclasses import replace
from typing import Any, ClassVar

from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import Channel, artifact_utils, standard_artifacts, standard_component_specs
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import Artifacts, Rejects, keep_after_failure
from detloom.components.example_gen.driver import DATA_FOLDERS_KEY, Driver, file_pattern, split_input_base
from detloom.components.example_gen.ingest import IngestFolders, RefusedDataError, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import REJECTS_KEY
from detloom.schemas.contracts.rejects import NO_SPLIT
from detloom.schemas.errors import InputError

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY


class DetectionExampleGenSpec(ComponentSpec):
    """The parameters of TFX's file-based driver, and our own."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        **standard_component_specs.FileBasedExampleGenSpec.PARAMETERS,
        **{name: ExecutionParameter(type=kind) for name, kind in ExampleGenParams.property_types().items()},
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        REJECTS_KEY: ChannelParameter(type=Rejects),
    }


class Executor(BaseBeamExecutor):
    """An executor that ingests the data folders that the driver resolved.

    The `file_format` property stays unset: TFX accepts only a value that means GZIP, while all readers go by the file
    name.
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = ExampleGenParams.from_properties(exec_properties)
        input_base = exec_properties[standard_component_specs.INPUT_BASE_KEY]
        examples = artifact_utils.get_single_instance(output_dict[EXAMPLES_KEY])
        rejects = artifact_utils.get_single_instance(output_dict[REJECTS_KEY])
        examples_utils.set_payload_format(examples, example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE)
        out = IngestFolders(examples=examples.uri, rejects=rejects.uri)
        subfolders = json.loads(exec_properties[DATA_FOLDERS_KEY])
        try:
            report = ingest(input_base, params, out, self._make_beam_pipeline, subfolders=subfolders)
        except RefusedDataError as error:
            raise InputError(f"{error} All rejects: {keep_after_failure(rejects.uri)}") from None
        examples.split_names = artifact_utils.encode_split_names(
            [split for split in report["splits"] if split != NO_SPLIT]
        )


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
        params: ExampleGenParams | None = None,
        *,
        range_config: range_config_pb2.RangeConfig | RuntimeParameter | None = None,
    ) -> None:
        """Create the component.

        Args:
            input_base: the data folder; it may contain {SPAN} and {VERSION}, of which the latest is used.
            params: None detects the format and uses the data set's own splits.
            range_config: selects another span than the latest (`static_range` with equal start and end).

        Raises:
            InputError: `params` and the path contradict each other.
        """
        params = replace(params or ExampleGenParams(), code_fingerprint=source_fingerprint(__name__))
        if isinstance(input_base, RuntimeParameter):
            raise InputError(
                "input_base: got a RuntimeParameter, allowed: a path or an address, because it decides how the data "
                "are read; compile the pipeline again for another one."
            )
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
