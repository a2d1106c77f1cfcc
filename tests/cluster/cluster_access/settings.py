"""The cluster that the tests use; `make test-cluster` sets the variables."""

import os
from dataclasses import dataclass

HOST_VARIABLE = "DETLOOM_TEST_KFP_HOST"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A cluster with Kubeflow Pipelines.

    Attributes:
        host: address of the API or of the user interface, which passes requests on to the API.
        image: image of this checkout, which the cluster's machines have or can pull.
        namespace: namespace of the runs.
        root: address of artifacts; empty for the server's default.
        changes: settings for all runs, such as train.num_steps=30, to try the tests.
    """

    host: str
    image: str
    namespace: str
    root: str
    changes: tuple[str, ...]


def read_settings() -> ClusterSettings | None:
    """Return the settings; None without an address.

    Raises:
        ValueError: with an address but without an image.
    """
    host, image = os.environ.get(HOST_VARIABLE, ""), os.environ.get("DETLOOM_TEST_IMAGE", "")
    if not host:
        return None
    if not image:
        raise ValueError("IMAGE: set it to an image of this checkout; `make image` builds one")
    return ClusterSettings(
        host=host.rstrip("/"),
        image=image,
        namespace=os.environ.get("DETLOOM_TEST_NAMESPACE") or "kubeflow",
        root=os.environ.get("DETLOOM_TEST_ROOT", ""),
        changes=tuple(os.environ.get("DETLOOM_TEST_SETTINGS", "").splitlines()),
    )
