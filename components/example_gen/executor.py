"""Define the executor of DetectionExampleGen."""

import json
from typing import Any

from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact

from detloom.components.artifact_types import keep_after_failure
from detloom.components.example_gen.driver import DATA_FOLDERS_KEY
from detloom.components.example_gen.ingest import NO_SPLIT, IngestFolders, RefusedDataError, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.properties import REJECTS_KEY
from detloom.schemas.errors import InputError

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY


class Executor(BaseBeamExecutor):
    """An executor that ingests the data folders that the driver resolved.

    The `file_format` property stays unset: TFX accepts only a value that means GZIP, while all readers go by the file
    name.
    """

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
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
