"""Check a TFX pipeline that was not made from a run file for what a backend would refuse or lose."""

from collections.abc import Sequence

from tfx.components.example_gen.component import FileBasedExampleGen
from tfx.components.infra_validator.component import InfraValidator
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import SOURCE_URI_KEY, Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.orchestration.pipeline import Pipeline

from detloom.components.example_gen.skipped_spans import PLACEHOLDER
from detloom.components.notifier.component import Notifier, NotifierParams
from detloom.components.notifier.read_secret import secret_variables
from detloom.pipelines.compile.check_run import PIPELINE_NAME, check_vertex_nodes
from detloom.pipelines.compile.pipeline_spec import NODE_ID
from detloom.schemas.errors import InputError, check_unique
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.kubeflow import PIPELINE_ROOT_SCHEMES, Kubeflow
from detloom.schemas.run_file.nodes import ALL_NODES, NodeSettings
from detloom.schemas.run_file.vertex import Vertex


def check_pipeline(pipeline: Pipeline, backend: Kubeflow | Vertex, nodes: Sequence[NodeSettings]) -> None:
    """Raise InputError for a name, a node or settings that the backend does not support."""
    if not PIPELINE_NAME.fullmatch(pipeline.id):
        allowed = "lower case letters and digits, '-' between them"
        raise InputError(f"pipeline_name: got '{pipeline.id}', allowed: {allowed}.")
    if not pipeline.components:
        raise InputError("components: got none, allowed: at least one node.")
    ids = (ALL_NODES, *(node.id for node in pipeline.components))
    check_unique("nodes", (each.node for each in nodes))
    for each in nodes:
        if each.node not in ids:
            raise InputError(f"nodes: got {each.node}, allowed: {', '.join(ids)}.")
        if each.beam_args is not None:
            raise InputError(f"nodes, {each.node}: beam_args: set them by the node's own with_beam_pipeline_args.")
    if isinstance(backend, Vertex):
        check_vertex_nodes(nodes)
    if isinstance(backend, Vertex) and backend.training is not None:
        raise InputError("vertex.training: is for run files; give the Trainer TFX's own executor for Vertex AI.")
    for node in pipeline.components:
        fault = _fault_of(node) or (_fault_on_kubeflow(node) if isinstance(backend, Kubeflow) else None)
        if fault is not None:
            raise InputError(f"{node.id}: {fault}")


def _fault_of(node: BaseNode) -> str | None:
    """Return why neither backend can run a node."""
    if not NODE_ID.fullmatch(node.id):
        return "is not an id of a node in a job, allowed: letters, digits and '-'; set it by with_id."
    if isinstance(node, InfraValidator):
        return "is an InfraValidator, which TFX does not compile; leave it out."
    notifier = NotifierParams.from_properties(node.exec_properties) if isinstance(node, Notifier) else None
    if notifier is not None and secret_variables(notifier.notifications):
        return "got a reference kubernetes:..., allowed here: env:NAME, with NAME among the `secrets` of Kubeflow."
    return None


def _fault_on_kubeflow(node: BaseNode) -> str | None:
    """Return why open-source Kubeflow Pipelines cannot run a node.

    Its compiler has no resolvers (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/argo.go), its importer needs
    a scheme (backend/src/v2/component/importer_launcher.go), and it runs no driver of an ExampleGen.
    """
    if isinstance(node, Resolver):
        return (
            "is a Resolver, which Kubeflow Pipelines does not run; for the model that serves use ProductionModel of "
            "detloom.components, or compile for Vertex AI."
        )
    if isinstance(node, Importer) and not str(node.exec_properties[SOURCE_URI_KEY]).startswith(PIPELINE_ROOT_SCHEMES):
        source = redact(str(node.exec_properties[SOURCE_URI_KEY]))
        return f"got '{source}', allowed for an Importer on Kubeflow: an address at {', '.join(PIPELINE_ROOT_SCHEMES)}."
    placeholder = PLACEHOLDER.search(str(node.exec_properties)) if isinstance(node, FileBasedExampleGen) else None
    if placeholder is not None:
        return (
            f"got '{placeholder[0]}' in a path, which Kubeflow Pipelines does not resolve for TFX's ExampleGens; write "
            "the number of the span, or use DetectionExampleGen."
        )
    return None
