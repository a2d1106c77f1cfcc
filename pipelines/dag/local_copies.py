"""Nodes that read and write folders, for a run on this machine whose artifacts are in a bucket."""

import contextlib
import posixpath
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec

from detloom.components.artifact_types import Artifacts
from detloom.components.model_card import component as model_card_component
from detloom.components.retrain.reuse import ReusingTrainer, ReusingTuner
from detloom.components.storage.local_copy import copy_folder, local_output
from detloom.components.storage.storage import is_address, open_storage


class _OnLocalCopies:
    """Runs the executor that a class inherits beside this one on copies of its artifacts."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        with local_artifacts(input_dict, output_dict):
            super().Do(input_dict, output_dict, exec_properties)  # type: ignore[misc]


class TrainerOnLocalCopies(_OnLocalCopies, ReusingTrainer):
    """TFX's Trainer."""


class TunerOnLocalCopies(_OnLocalCopies, ReusingTuner):
    """TFX's Tuner."""


class ModelCardOnLocalCopies(_OnLocalCopies, model_card_component.Executor):
    """The ModelCard."""


def use_local_copies(node: BaseNode) -> None:
    """Let a node work on copies of its artifacts if its executor cannot read or write addresses."""
    specs = {
        "Trainer": ExecutorClassSpec(TrainerOnLocalCopies),
        "Tuner": ExecutorClassSpec(TunerOnLocalCopies),
        "ModelCard": ExecutorClassSpec(ModelCardOnLocalCopies),
    }
    if node.id in specs:
        node.executor_spec = specs[node.id]


@contextlib.contextmanager
def local_artifacts(inputs: Artifacts, outputs: Artifacts) -> Iterator[None]:
    """Replace the addresses of artifacts by those of local copies, and upload the outputs at the end.

    After an exception, nothing is uploaded.

    Raises:
        OSError: the storage does not respond; the node can be retried.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="detloom-artifacts-")))
        for number, artifact in enumerate(artifact for artifacts in inputs.values() for artifact in artifacts):
            if is_address(address := artifact.uri):
                folder = scratch / str(number) / posixpath.basename(address)
                copy_folder(open_storage(address), "", folder)
                artifact.uri = str(folder)
                stack.callback(setattr, artifact, "uri", address)
        for artifact in (artifact for artifacts in outputs.values() for artifact in artifacts):
            if is_address(address := artifact.uri):
                artifact.uri = str(stack.enter_context(local_output(address)))
                stack.callback(setattr, artifact, "uri", address)
        yield
