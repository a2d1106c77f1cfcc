"""Manifests of a training: a JobSet, an Indexed Job with its service, or a TFJob of the training operator's version 1.

Their fields are those of kubernetes-sigs/jobset (config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml), of
Kubernetes' batch/v1, and of kubeflow/training-operator (manifests/base/crds/kubeflow.org_tfjobs.yaml). How workers find
each other is told in docs/distributed.md and read by `trainer_module/cluster.py`. When one worker is lost, TensorFlow
ends the others; all are started again and go on from the newest checkpoint. Never run by us on a cluster.
"""

from typing import Any, Literal

import yaml

from detloom.pipelines.manifests.training_pod import Training, config_map, labels, metadata, pod_template
from detloom.trainer_module.cluster import JOBSET, NUM_WORKERS, REPLICAS, SERVICE

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
    """The objects, in the order in which a cluster should get them."""
    match kind:
        case "jobset":
            return [config_map(training), _job_set(training)]
        case "job":
            return [config_map(training), _service(training), _job(training)]
        case "tfjob":
            return [config_map(training), _tf_job(training)]


def to_yaml(documents: list[_Plain]) -> str:
    """One text; the same objects give the same bytes."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)


class _Dumper(yaml.SafeDumper):
    """Without anchors, which not every reader of manifests takes."""

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
                    # A lost worker fails the job at once, and the set then starts all of them again.
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
    # One lost worker ends all of them, and each counts.
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
    """Headless: it only gives the pods names; also before they are ready, since each waits for the others."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(training),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(training)},
    }


def _tf_job(training: Training) -> _Plain:
    """The operator sets TF_CONFIG in the container `tensorflow`, with its port `tfjob-port`, where workers are several.

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
