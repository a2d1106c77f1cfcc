"""The backend of a compiled job, and the settings of its nodes."""

from dataclasses import dataclass

from detloom.schemas.model.strategy import Strategy
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.nodes import NodeSettings
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.run_file import Place, RunFile
from detloom.schemas.run_file.vertex import Vertex


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The backend of a job, and the settings of its nodes.

    Attributes:
        strategy: devices of the nodes that train.
        notifications: messages of the pipeline, whose Kubernetes secrets the notifiers get.
    """

    backend: Kubeflow | Vertex
    nodes: tuple[NodeSettings, ...] = ()
    strategy: Strategy = Strategy()
    notifications: Notifications | None = None

    @property
    def place(self) -> Place:
        """The name of the backend."""
        return "kubeflow" if isinstance(self.backend, Kubeflow) else "vertex"


def job_settings_of(run: RunFile, place: Place) -> JobSettings:
    """Return the settings in a run file that was read for this place."""
    return JobSettings(
        backend=getattr(run, place),
        nodes=run.nodes,
        strategy=run.trainer.strategy,
        notifications=run.notifications,
    )
