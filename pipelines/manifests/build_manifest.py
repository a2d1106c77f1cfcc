"""Build the manifests of a training run: a JobSet, an Indexed Job with a service, or a TFJob (training operator v1).

The fields follow kubernetes-sigs/jobset (config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml), batch/v1 of
Kubernetes and kubeflow/training-operator (manifests/base/crds/kubeflow.org_tfjobs.yaml). docs/distributed.md describes
how workers find each other; `trainer_module/runtime/cluster.py` reads their variables. If one worker is lost,
TensorFlow ends the others; all are restarted and resume from the newest checkpoint. Not tested on a cluster.
"""

from typing import Any, Literal

import yaml

from detloom.pipelines.manifests.training_pod import Training, config_map, labels, metadata, pod_template
from detloom.trainer_module.runtime.cluster import JOBSET, NUM_WORKERS, REPLICAS, SERVICE

ManifestKind = Literal["jobset", "job", "tfjob"]
_WORKERS = "workers"  # the replicated job of a JobSet
_PORT_NAME = "train"
_ANNOTATIONS = {  # kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go
    JOBSET[0]: "jobset.sigs.k8s.io/jobset-name",
    JOBSET[1]: "jobset.sigs.k8s.io/replicatedjob-name",
    REPLICAS: "jobset.sigs.k8s.io/replicatedjob-replicas",
    JOBSET[2]: "jobset.sigs.k8s.io/job-index",
}
_Plain = dict[str, Any]


def build_manifest(training: Training, kind: ManifestKind) -> list[_Plain]:
    """Return the objects in the order in which they should be applied."""
    match kind:
        case "jobset":
            return [config_map(training), _job_set(training)]
        case "job":
            return [config_map(training), _service(training), _job(training)]
        case "tfjob":
            return [config_map(training), _tf_job(training)]


def to_yaml(documents: list[_Plain]) -> str:
    """Format the objects as YAML; the same objects give the same bytes."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, because not every reader of manifests supports them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _job_set(training: Training) -> _Plain:
    environment = [{"name": NUM_WORKERS, "value": str(training.workers)}]
    for variable, annotation in _ANNOTATIONS.items():
        path = f"metadata.annotations['{annotation}']"
        environment.append({"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}})  # type: ignore[dict-item]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(training),
        "spec": {
            "failurePolicy": {"maxRestarts": training.num_restarts},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [
                {
                    "name": _WORKERS,
                    "replicas": 1,
                    # A lost worker fails the job at once; the set then restarts all workers.
                    "template": {"spec": _indexed(training, environment, backoff_limit=0)},
                }
            ],
        },
    }


def _job(training: Training) -> _Plain:
    environment = [
        {"name": NUM_WORKERS, "value": str(training.workers)},
        {"name": SERVICE, "value": training.name},
        # Kubernetes sets HOSTNAME to the pod's host name, <job>-<index>, and JOB_COMPLETION_INDEX.
    ]
    # One lost worker ends all of them, and each counts as a failure.
    spec = _indexed(training, environment, backoff_limit=training.workers * training.num_restarts)
    spec["template"]["spec"]["subdomain"] = training.name
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(training), "spec": spec}


def _indexed(training: Training, environment: list[_Plain], *, backoff_limit: int) -> _Plain:
    return {
        "completionMode": "Indexed",
        "completions": training.workers,
        "parallelism": training.workers,
        "backoffLimit": backoff_limit,
        "template": pod_template(training, environment, container="trainer", port_name=_PORT_NAME),
    }


def _service(training: Training) -> _Plain:
    """Return a headless service for the pods' host names, also before they are ready: they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(training),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(training)},
    }


def _tf_job(training: Training) -> _Plain:
    """Return a TFJob. For several workers the operator sets TF_CONFIG in the container `tensorflow`, port `tfjob-port`.

    Source: kubeflow/training-operator, pkg/controller.v1/tensorflow.
    """
    restarts = training.num_restarts
    template = pod_template(training, [], container="tensorflow", port_name="tfjob-port")
    del template["spec"]["restartPolicy"]  # the operator sets it from the replica's
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(training),
        "spec": {
            "runPolicy": {"backoffLimit": training.workers * restarts, "cleanPodPolicy": "Running"},
            "tfReplicaSpecs": {
                "Worker": {
                    "replicas": training.workers,
                    "restartPolicy": "OnFailure" if restarts else "Never",
                    "template": template,
                }
            },
        },
    }
