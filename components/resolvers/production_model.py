"""The ProductionModel component, for clusters.

Open-source Kubeflow Pipelines refuses resolvers (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/argo.go), and
Vertex AI knows only TFX's own, which find the latest blessed model instead of the one that serves.
"""

import logging
from pathlib import Path
from typing import Any, ClassVar

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Model

from detloom.components.artifact_types import Artifacts, saved_model_dir
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import (
    CODE_FINGERPRINT,
    NOTHING_FOUND,
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_VERSION_PROPERTY,
)
from detloom.components.resolvers.copy_version import copy_production_model
from detloom.schemas.contracts.detections import SERVING_FOLDER
from detloom.schemas.reading.redact import redact

CANDIDATE_KEY = "candidate"
PRODUCTION_KEY = "production"
_LOGGER = logging.getLogger("detloom")


class Executor(BaseExecutor):
    """Copy the version that serves now into the output, or mark the output as empty."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        production = exec_properties[PRODUCTION_KEY]
        model = artifact_utils.get_single_instance(output_dict[keys.MODEL_KEY])
        candidates = input_dict.get(CANDIDATE_KEY) or []
        found = copy_production_model(
            production, Path(model.uri) / SERVING_FOLDER, Path(saved_model_dir(candidates[0])) if candidates else None
        )
        if found is None:
            _LOGGER.info("%s: no model has been pushed yet.", redact(production))
            model.set_int_custom_property(NOTHING_FOUND, 1)
            return
        _LOGGER.info("The production model is version %s in %s.", found.version, redact(production))
        model.set_string_custom_property(PUSHED_VERSION_PROPERTY, found.version)
        model.set_string_custom_property(PUSHED_DESTINATION_PROPERTY, found.address)


class ProductionModelSpec(ComponentSpec):
    """Input: the candidate (optional). Output: a model."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        PRODUCTION_KEY: ExecutionParameter(type=str),
        CODE_FINGERPRINT: ExecutionParameter(type=str),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {CANDIDATE_KEY: ChannelParameter(type=Model, optional=True)}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {keys.MODEL_KEY: ChannelParameter(type=Model)}


class ProductionModel(BaseComponent):
    """A TFX component that copies the model that serves now.

    The result changes with every push, which TFX's cache does not see: the pipeline must disable caching for this node.

    Outputs:
        model: Model with its SavedModel; custom properties name the version. If no version exists, the
            artifact has no files and the custom property `nothing_found` is 1. Pushed versions hold no separate
            weights: a warm start reads the weights of the SavedModel.
    """

    SPEC_CLASS = ProductionModelSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(self, *, production: str, candidate: BaseChannel | None = None) -> None:
        """Create the node.

        Args:
            production: folder of versions, or its address, or that of an endpoint (`VertexEndpoint.address`).
            candidate: a model to skip even if it serves now.
        """
        spec = ProductionModelSpec(
            **{
                PRODUCTION_KEY: production,
                CODE_FINGERPRINT: source_fingerprint(__name__),
                CANDIDATE_KEY: candidate,
                keys.MODEL_KEY: Channel(type=Model),
            }
        )
        super().__init__(spec=spec)
