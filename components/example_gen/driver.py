"""TFX's driver for files (spans, versions, input fingerprint), with errors that name the path."""

from pathlib import Path
from typing import Any

from tfx.components.example_gen import driver as tfx_driver
from tfx.components.example_gen import utils
from tfx.proto import example_gen_pb2
from tfx.types import standard_component_specs
from tfx.utils import proto_utils

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.watched_files import find_data_folder, find_missing_file, fingerprint_images
from detloom.schemas.errors import InputError


class Driver(tfx_driver.FileBasedDriver):
    """Resolves the data folder and checks that the files are there before anything runs.

    TFX's own fingerprint covers the annotation files; the images are added here, since a span is chosen by its
    annotations and a folder of images may be nested or absent.
    """

    def resolve_exec_properties(
        self, exec_properties: dict[str, Any], pipeline_info: Any, component_info: Any
    ) -> dict[str, Any]:
        params = ExampleGenParams.from_properties(exec_properties)
        base = exec_properties[standard_component_specs.INPUT_BASE_KEY]
        if not Path(base).is_dir():
            raise InputError(f"{base}: the data folder is missing; create it or correct the path of the data.")
        try:
            resolved = super().resolve_exec_properties(exec_properties, pipeline_info, component_info)
        except ValueError as error:
            raise InputError(f"{base}: no span of the data can be chosen ({error}).") from None
        folder = find_data_folder(base, read_patterns(resolved), params)
        if not folder.is_dir():
            raise InputError(f"{folder}: the data folder is missing; create it or correct the path of the data.")
        missing = find_missing_file(folder, params)
        if missing is not None:
            raise InputError(
                f"{folder / missing}: no such file, needed for data of format {params.data_format!r} with splits "
                f"{dict(params.splits)}; correct the splits, the format or the path of the data."
            )
        resolved[utils.FINGERPRINT_PROPERTY_NAME] += "\n" + fingerprint_images(folder, params)
        return resolved


def read_patterns(exec_properties: dict[str, Any]) -> dict[str, str]:
    """The annotation patterns by name, as they stand in the input config."""
    config = example_gen_pb2.Input()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.INPUT_CONFIG_KEY], config)
    return {split.name: split.pattern for split in config.splits}
