"""The executor of ProductionModel."""

import logging
from pathlib import Path
from typing import Any

from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.utils import path_utils

from detloom.components.artifact_types import NOTHING_FOUND
from detloom.components.production_model.copy_version import copy_production_model
from detloom.schemas.detections import SERVING_FOLDER
from detloom.schemas.redact import redact

CANDIDATE_KEY = "candidate"
PUSH_TO_KEY, CODE_FINGERPRINT_KEY = "push_to", "code_fingerprint"
VERSION_PROPERTY, ADDRESS_PROPERTY = "pushed_version", "pushed_destination"  # as the Pusher names them
_LOGGER = logging.getLogger("detloom")


class Executor(BaseExecutor):
    """Copies the newest pushed version into the output, or marks the output as empty."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        push_to = exec_properties[PUSH_TO_KEY]
        model = artifact_utils.get_single_instance(output_dict[keys.MODEL_KEY])
        candidates = input_dict.get(CANDIDATE_KEY) or []
        found = copy_production_model(
            push_to, Path(model.uri) / SERVING_FOLDER, _saved_model_dir(candidates[0]) if candidates else None
        )
        if found is None:
            _LOGGER.info("%s: holds no model in production yet.", redact(push_to))
            model.set_int_custom_property(NOTHING_FOUND, 1)
            return
        _LOGGER.info("The model in production is version %d in %s.", found.version, redact(push_to))
        model.set_string_custom_property(VERSION_PROPERTY, str(found.version))
        model.set_string_custom_property(ADDRESS_PROPERTY, found.address)


def _saved_model_dir(model: Artifact) -> Path:
    return Path(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model)))
