"""Apache Beam's options for each node: `beam_args` of the node in the run file, else those of the run file."""

import contextlib
import io
from collections.abc import Sequence

from detloom.components.beam_job import remote_runner
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.nodes import settings_of
from detloom.schemas.run_file.run_file import Place, RunFile

_CLOUD_STORAGE = "gs://"
_EXAMPLE_GEN = "DetectionExampleGen"


def check_beam_args(args: Sequence[str]) -> None:
    """Raise InputError for an option that Beam refuses: its parser would end the process in the first node."""
    from apache_beam.options.pipeline_options import PipelineOptions  # late: containers import this module early
    from apache_beam.runners import create_runner

    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            options = PipelineOptions(list(args)).get_all_options()
        create_runner(options["runner"] or "DirectRunner")
    except SystemExit:
        problem = message.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"beam_args: got {list(args)}, but {problem}.") from None
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"beam_args: got {list(args)}, but {error}") from None


def has_remote_workers(run: RunFile, node_id: str) -> bool:
    """Return True if a node's Beam work runs on machines that see neither this machine's folders nor a pod's mounts."""
    return bool(remote_runner(_args_of(run, node_id)))


def beam_args_of(run: RunFile, node_id: str, place: Place) -> list[str]:
    """Return all Beam options of a node; no options of the pipeline are added.

    Raises:
        InputError: for an option that Beam refuses, or if remote workers could not read the node's inputs or write its
            outputs.
    """
    args = _args_of(run, node_id)
    check_beam_args(args)
    # Flink's task managers may see the same folders as this machine; the pods of a cluster share no disk.
    runner = remote_runner(args)
    if runner == "dataflow" or (runner and place != "local"):
        _check_storage(run, node_id, place)
    return args


def _args_of(run: RunFile, node_id: str) -> list[str]:
    args = settings_of(run.nodes, node_id).beam_args
    return list(run.beam_args if args is None else args)


def _check_storage(run: RunFile, node_id: str, place: Place) -> None:
    key, root = "pipeline_root", run.pipeline_root
    if place != "local":
        key, root = f"{place}.pipeline_root", getattr(run, place).pipeline_root
    if not root.startswith(_CLOUD_STORAGE):
        raise InputError(
            f"{key}: got '{root}', allowed with a remote runner in the beam_args of {node_id}: an address at gs://, "
            "which remote workers can access."
        )
    if node_id == _EXAMPLE_GEN and not run.data.path.startswith(_CLOUD_STORAGE):
        got = "the embedded data" if run.data.path == EMBEDDED_DIGITS else f"'{run.data.path}'"
        raise InputError(
            f"data.path: got {got}, allowed with a remote runner in the beam_args of {node_id}: an address at gs://."
        )
