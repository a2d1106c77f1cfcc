"""Trainer and Tuner that do not run if only the evaluation of the last trained model is to be repeated.

RetrainDecision then names the outputs of that training run, which become those of the Trainer. The Tuner has none.
"""

import json
from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.trainer.executor import GenericExecutor
from tfx.components.tuner.executor import Executor as StockTunerExecutor

from detloom.components.artifact_types import Artifacts
from detloom.components.properties import DECISION_KEY, REUSED_PROPERTY, string_property
from detloom.components.storage.local_copy import copy_folder
from detloom.components.storage.storage import open_storage


class Reusing:
    """Copies what the decision names, if anything; else runs the executor that a class inherits beside this one."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        reused = [string_property(decision, REUSED_PROPERTY) for decision in input_dict.get(DECISION_KEY, ())]
        if not any(reused):
            rest = {name: artifacts for name, artifacts in input_dict.items() if name != DECISION_KEY}
            super().Do(rest, output_dict, exec_properties)  # type: ignore[misc]
            return
        sources = json.loads(reused[0] or "")
        for name in sources.keys() & output_dict.keys():
            logging.info("Not trained again: %s is that of %s.", name, sources[name])
            copy_folder(open_storage(sources[name]), "", Path(output_dict[name][0].uri))


class ReusingTrainer(Reusing, GenericExecutor):
    """TFX's Trainer."""


class ReusingTuner(Reusing, StockTunerExecutor):
    """TFX's Tuner."""
