"""Connections to Vertex AI's pipeline and schedule services."""

from dataclasses import dataclass
from typing import Any

import google.auth
from google.api_core.client_options import ClientOptions
from google.cloud.aiplatform_v1.services.pipeline_service import PipelineServiceClient
from google.cloud.aiplatform_v1.services.schedule_service import ScheduleServiceClient

from detloom.pipelines.backends.api_errors import Kind, Server, failures_said
from detloom.schemas.vertex_config import Vertex

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, kw_only=True)
class VertexApi:
    """The services of one region.

    The generated clients are used as they are. aiplatform.PipelineJob.submit would make a bucket that is missing, and
    aiplatform.PipelineJob's `enable_caching=True` would allow answers from the cache for tasks that must not have them
    (googleapis/python-aiplatform, google/cloud/aiplatform/pipeline_jobs.py).
    """

    server: Server
    pipelines: Any
    schedules: Any


def vertex_server(settings: Vertex) -> Server:
    """Who is asked, for messages."""
    account = f" and 'Service Account User' on {settings.service_account}" if settings.service_account else ""
    steps: dict[Kind, str] = {
        "signed out": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
        "forbidden": f"ask for the role 'Vertex AI User' on the project {settings.project}{account}",
        "quota": f"wait and try again, or ask for more quota in {settings.region}",
        "not found": "look at the id, and at vertex.project and vertex.region",
        "unreachable": "look at vertex.region, at the network and at proxies",
        "tls": "look at proxies that open connections; GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names other authorities",
    }
    return Server(name=f"Vertex AI in {settings.region} (project {settings.project})", next_steps=steps)


def connect_vertex(settings: Vertex) -> VertexApi:
    """Connect with Application Default Credentials.

    Raises:
        ApiError: without credentials.
    """
    server = vertex_server(settings)
    with failures_said(server, "sign in"):
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    options = ClientOptions(api_endpoint=f"{settings.region}-aiplatform.googleapis.com")
    return VertexApi(
        server=server,
        pipelines=PipelineServiceClient(credentials=credentials, client_options=options),
        schedules=ScheduleServiceClient(credentials=credentials, client_options=options),
    )
