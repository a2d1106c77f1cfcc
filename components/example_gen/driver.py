"""TFX's driver for files (spans, versions, input fingerprint), with errors that name the path."""

import json
from typing import Any

from tfx.components.example_gen import driver as tfx_driver
from tfx.components.example_gen import utils
from tfx.proto import example_gen_pb2
from tfx.types import standard_component_specs
from tfx.utils import proto_utils

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.spans import find_earlier_spans, find_odd_entries, fingerprint_folders, subfolder_of
from detloom.schemas.errors import InputError

DATA_FOLDERS_KEY = "data_folders"  # JSON: the folders to read, relative to the input base, oldest span first


class Driver(tfx_driver.FileBasedDriver):
    """Resolves the data folder, or those of the latest spans, and checks that they are there before anything runs.

    TFX's own fingerprint covers the entries of the latest folder; all files of all folders are added here.
    """

    def resolve_exec_properties(
        self, exec_properties: dict[str, Any], pipeline_info: Any, component_info: Any
    ) -> dict[str, Any]:
        params = ExampleGenParams.from_properties(exec_properties)
        base = exec_properties[standard_component_specs.INPUT_BASE_KEY]
        pattern = read_pattern(exec_properties)
        if not DataFolder(base).is_folder(""):
            raise InputError(f"{base}: the data folder is missing; create it or correct the path of the data.")
        try:
            resolved = super().resolve_exec_properties(exec_properties, pipeline_info, component_info)
        except ValueError as error:
            odd = find_odd_entries(base, pattern)
            hint = f"; not numbered: {', '.join(odd)}: move them elsewhere" if odd else ""
            raise InputError(f"{base}: no span of the data can be chosen ({error}){hint}.") from None
        folders = [subfolder_of(read_pattern(resolved))]
        if params.num_spans > 1:
            span = resolved[utils.SPAN_PROPERTY_NAME]
            folders = find_earlier_spans(base, pattern, span, params.num_spans - 1) + folders
        resolved[DATA_FOLDERS_KEY] = json.dumps(folders)
        resolved[utils.FINGERPRINT_PROPERTY_NAME] += "\n" + fingerprint_folders(base, folders)
        return resolved


def read_pattern(exec_properties: dict[str, Any]) -> str:
    """The pattern of the watched files, as it stands in the input config."""
    config = example_gen_pb2.Input()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.INPUT_CONFIG_KEY], config)
    return config.splits[0].pattern
