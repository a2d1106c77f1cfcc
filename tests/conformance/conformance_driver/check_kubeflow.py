"""Check the rules of open-source Kubeflow Pipelines at submission, and of Argo Workflows for the compiled workflow.

kubeflow/pipelines:
    backend/src/v2/compiler/visitor.go                  executors are only containers and importers
    backend/src/v2/compiler/argocompiler/dag.go         an importer has no condition; a task's driver is NAME-driver, a
                                                        DAG has not only exit handlers
    backend/src/v2/compiler/argocompiler/container.go   conversion of a retry policy to Argo's
    backend/src/v2/compiler/argocompiler/spec_patch.go  platform settings are parsed strictly
    kubernetes_platform/proto/kubernetes_executor_config.proto
argoproj/argo-workflows:
    workflow/validate/validate.go                       names of tasks and templates
    workflow/controller/operator.go, util/intstr        the back-off factor is parsed as an integer
"""

import re
from typing import Any

from conformance_driver.errors import JobRefused
from conformance_driver.job import Job
from conformance_driver.pod_settings import check_settings

SCHEMA_VERSION = "2.1.0"
EXIT_STRATEGY = 2  # TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
_WORKFLOW_FIELD = re.compile(r"[a-zA-Z][-a-zA-Z0-9]*")  # no leading digit in names of dependencies
_MAX_FIELD = 128
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SCHEMES = ("minio://", "s3://", "gs://")


def check_kubeflow(job: Job) -> None:
    """Raise JobRefused for a job that the open-source backend would refuse."""
    if job.spec.schema_version != SCHEMA_VERSION:
        raise JobRefused(f"schemaVersion: got {job.spec.schema_version!r}, allowed: {SCHEMA_VERSION}")
    if not _KUBERNETES_NAME.fullmatch(job.name):
        raise JobRefused(f"pipelineInfo.name: got {job.name!r}, allowed: a valid beginning of a Kubernetes name")
    if not job.root.startswith(_SCHEMES):
        raise JobRefused(f"pipeline root: got {job.root!r}, allowed: an address at {', '.join(_SCHEMES)}")
    _check_dag(job, "root", job.spec.root)
    for name, component in sorted(job.spec.components.items()):
        _check_name(name, name)
        if component.WhichOneof("implementation") == "dag":
            _check_dag(job, name, component)
    for label, executor in sorted(job.executors.items()):
        _check_executor(label, executor)
    for label, settings in sorted(job.platform.items()):
        if label not in job.executors:
            raise JobRefused(f"platform document: there is no executor {label}")
        check_settings(label, settings)


def _check_dag(job: Job, dag_name: str, component: Any) -> None:
    tasks = component.dag.tasks
    exits = {name for name, task in tasks.items() if task.trigger_policy.strategy == EXIT_STRATEGY}
    if exits == set(tasks):
        raise JobRefused(f"{dag_name}: contains only exit handlers")
    for name, task in sorted(tasks.items()):
        _check_name(f"{dag_name}.{name}", f"{name}-driver")
        if f"{name}-driver" in tasks:
            raise JobRefused(f"{dag_name}.{name}: its driver would have the name of another task")
        if name in exits:
            _check_name(f"{dag_name}.{name}", f"exit-hook-{dag_name}-{name}")
            if not task.dependent_tasks:
                raise JobRefused(f"{dag_name}.{name}: an exit handler must wait for at least one task")
        label = job.component(task).executor_label
        if label and job.executors[label].HasField("importer") and task.trigger_policy.condition:
            raise JobRefused(f"{dag_name}.{name}: triggerPolicy.condition on importer task is not supported")
        factor = task.retry_policy.backoff_factor
        if factor != int(factor):
            raise JobRefused(f"{dag_name}.{name}: retryPolicy.backoffFactor: got {factor}, allowed: whole numbers")


def _check_name(where: str, name: str) -> None:
    if not _WORKFLOW_FIELD.fullmatch(name) or len(name) > _MAX_FIELD:
        raise JobRefused(
            f"{where}: got the name {name!r}, allowed in Argo: letters, digits and '-', at most {_MAX_FIELD}"
        )


def _check_executor(label: str, executor: Any) -> None:
    match executor.WhichOneof("spec"):
        case "container":
            if not executor.container.image or not executor.container.command:
                raise JobRefused(f"{label}: the launcher replaces the image's entrypoint; image and command are needed")
        case "importer":
            pass
        case "resolver":
            raise JobRefused(f"{label}: resolver executors not implemented")
        case kind:
            raise JobRefused(f"{label}: unknown executor spec type: {kind}")
