"""A pod of our image beside the runs: it receives their notifications, and sees their volume and ML Metadata."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException

from cluster_access.pods import MAIN, Cluster, wait_for

MOUNT = "/models"
FOLDER = f"{MOUNT}/runs"  # the pod makes it; other pods cannot write beside it, because the volume belongs to root
_PORT = 8080
_MESSAGES = "/tmp/messages"
_START_SECONDS = 600  # the machine may have to pull the image first
_RECEIVE = f"""
import http.server, json, os
os.makedirs({FOLDER!r}, exist_ok=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open({_MESSAGES!r}, "a") as file:
            file.write(json.dumps({{**body, "path": self.path}}) + "\\n")
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
open({_MESSAGES!r}, "w").close()
http.server.ThreadingHTTPServer(("", {_PORT}), Handler).serve_forever()
"""
_METADATA = """
import json, os
from google.protobuf import json_format
from ml_metadata import metadata_store
from ml_metadata.proto import metadata_store_pb2
service = "METADATA_GRPC_SERVICE_SERVICE_"  # Kubernetes sets these variables for the service of Kubeflow Pipelines
store = metadata_store.MetadataStore(
    metadata_store_pb2.MetadataStoreClientConfig(
        host=os.environ[service + "HOST"], port=int(os.environ[service + "PORT"])
    )
)
for each in (*store.get_artifacts(), *store.get_executions(), *store.get_contexts()):
    print(json.dumps(json_format.MessageToDict(each)))
"""
_FILES = """
import os, sys
print("\\n".join(sorted(os.path.join(top, name) for top, _, names in os.walk(sys.argv[1]) for name in names)))
"""
_SEARCH = """
import os, sys
for top, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(top, name), "rb") as file:
            if sys.argv[2].encode() in file.read():
                print(os.path.join(top, name))
"""


class HelperPod:
    """The pod, while it runs."""

    def __init__(self, cluster: Cluster, name: str, ip: str) -> None:
        self._cluster, self._name = cluster, name
        self.address = f"http://{ip}:{_PORT}"

    def run_python(self, code: str, *arguments: str) -> str:
        """Run Python code in the pod and return what it prints."""
        done = self._cluster.run_in(self._name, ["python", "-c", code, *arguments])
        assert done.code == 0, done.errors[-3000:]
        return done.output

    def messages(self, run_id: str) -> list[dict[str, Any]]:
        """Return the notifications of a run, which contain the address of its page, in the order in which they came."""
        text = self._cluster.run_in(self._name, ["cat", _MESSAGES]).output
        return [json.loads(line) for line in text.splitlines() if run_id in line]

    def files_under(self, folder: str) -> list[str]:
        return self.run_python(_FILES, folder).split()

    def files_with(self, folder: str, text: str) -> list[str]:
        """Return the files that contain a text."""
        return self.run_python(_SEARCH, folder, text).split()

    def dump_metadata(self) -> str:
        """Return all artifacts, executions and contexts of ML Metadata."""
        return self.run_python(_METADATA)


@contextlib.contextmanager
def helper_pod(cluster: Cluster, image: str, name: str, token: str) -> Iterator[HelperPod]:
    """Create a claim, a pod and a secret of one name, and delete them afterwards.

    The claim is mounted at `MOUNT`, and `FOLDER` belongs to user 1000. The secret's key `url` is the address of the
    receiver with the token in it.
    """
    core, namespace = cluster.core, cluster.namespace
    try:
        core.create_namespaced_persistent_volume_claim(namespace, _claim(name))
        core.create_namespaced_pod(namespace, _pod(name, image))

        def started() -> str | None:
            status = core.read_namespaced_pod(name, namespace).status
            is_ready = any(each.ready for each in status.container_statuses or ())
            return str(status.pod_ip) if is_ready else None

        helper = HelperPod(cluster, name, wait_for(started, f"the pod {name}", _START_SECONDS))
        url = {"url": f"{helper.address}/{token}"}
        core.create_namespaced_secret(namespace, {"metadata": {"name": name}, "stringData": url})
        yield helper
    finally:
        for kind in ("secret", "pod", "persistent_volume_claim"):
            with contextlib.suppress(ApiException):  # it does not exist
                getattr(core, f"delete_namespaced_{kind}")(name, namespace)


def _claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


def _pod(name: str, image: str) -> dict[str, Any]:
    container = {
        "name": MAIN,
        "image": image,
        "command": ["python", "-c", _RECEIVE],
        "readinessProbe": {"tcpSocket": {"port": _PORT}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": MOUNT}],
    }
    user = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {
        "containers": [container],
        "securityContext": user,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
    }
    return {"metadata": {"name": name}, "spec": spec}
