"""Apache Beam's options for each node: local work, or work on Dataflow or Flink as `beam` in the run file says."""

import contextlib
import io
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.beam import Dataflow, Flink
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.run_file import Place, RunFile
from detloom.trainer_module.files.user_cache import user_cache

JOB_SERVER_BEAM = "2.62.0"  # version of Beam's Java packages that the built job server consists of
_DATAFLOW_SCHEME = "gs://"
_EXAMPLE_GEN = "DetectionExampleGen"
_LOGGER = logging.getLogger("detloom")


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


def beam_args_of(run: RunFile, node_id: str, place: Place) -> list[str]:
    """Return all Beam options of a node; no options of the pipeline are added.

    Raises:
        InputError: if remote workers could not read the node's inputs or write its outputs.
    """
    beam = run.beam
    if beam is None or node_id not in beam.nodes:
        return list(run.beam_args)
    if place == "local" and beam.dataflow is not None:  # one run file can be used for all places
        _LOGGER.info("%s runs here: Dataflow workers cannot access folders of this machine.", node_id)
        return list(run.beam_args)
    _check_storage(run, node_id, place)
    if beam.dataflow is not None:
        return dataflow_args(beam.dataflow, run, node_id)
    assert beam.flink is not None
    return flink_args(replace(beam.flink, job_server_jar=_find_job_server(beam.flink, place)))


def dataflow_args(dataflow: Dataflow, run: RunFile, node_id: str) -> list[str]:
    """Return Beam's options for Dataflow. Beam names the job, so that concurrent runs do not conflict."""
    args = {
        "runner": "DataflowRunner",
        "project": dataflow.project,
        "region": dataflow.region,
        "temp_location": dataflow.temp_location.rstrip("/"),
        "machine_type": dataflow.machine_type,
        "max_num_workers": str(dataflow.max_workers),
        "service_account_email": dataflow.service_account,
        "subnetwork": dataflow.subnetwork,
        "sdk_container_image": dataflow.worker_image,
        "sdk_location": "container",
    }
    labels = (f"detloom-pipeline={run.name}", f"detloom-node={node_id.lower()}")
    return [f"--{key}={value}" for key, value in args.items() if value] + [f"--labels={label}" for label in labels]


def flink_args(flink: Flink) -> list[str]:
    """Return Beam's options for a Flink cluster.

    Raises:
        InputError: if the installed Beam does not support the version of Flink.
    """
    from apache_beam.options.pipeline_options import FlinkRunnerOptions  # late: containers import this module early

    supported = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    if flink.version not in supported:
        raise InputError(
            f"beam.flink.version: got '{flink.version}', allowed with the installed Beam: {', '.join(supported)}."
        )
    args = {
        "runner": "FlinkRunner",
        "flink_master": flink.master,
        "flink_version": flink.version,
        "flink_job_server_jar": flink.job_server_jar,
        "parallelism": str(flink.parallelism),
        "environment_type": flink.environment_type,
        "environment_config": flink.environment_config if flink.environment_type != "LOOPBACK" else "",
    }
    # The uber jar is built in Python and sent to Flink's REST server, so the node's image needs no Java.
    return [*(f"--{key}={value}" for key, value in args.items() if value), "--flink_submit_uber_jar"]


def job_server_in_cache(flink_version: str) -> Path:
    """Return the path at which `scripts/flink_cluster.py jar` keeps Beam's job server; it may not exist."""
    return user_cache("flink") / f"beam-runners-flink-{flink_version}-job-server-{JOB_SERVER_BEAM}.jar"


def _find_job_server(flink: Flink, place: Place) -> str:
    if flink.job_server_jar:
        return flink.job_server_jar
    field = "beam.flink.job_server_jar"
    if place != "local":
        raise InputError(
            f"{field}: got nothing, allowed on {place.capitalize()}: a path in the image, or an address at gs://; "
            "`scripts/flink_cluster.py jar` builds the file."
        )
    found = job_server_in_cache(flink.version)
    if not found.is_file():
        raise InputError(
            f"{field}: got nothing, and {found} does not exist; set the path of Beam's job server for Flink "
            f"{flink.version}, or build the one for Flink 1.19 (`python scripts/flink_cluster.py jar` of a checkout)."
        )
    return str(found)


def _check_storage(run: RunFile, node_id: str, place: Place) -> None:
    if place == "local":
        return  # Flink's task managers must see the same folders, as the documentation of `flink` says
    settings = getattr(run, place)
    root = settings.pipeline_root if settings is not None else ""
    if not root.startswith(_DATAFLOW_SCHEME):
        raise InputError(
            f"{place}.pipeline_root: got '{root}', allowed with {node_id} in beam.nodes: an address at gs://, which "
            "remote workers can access; or remove the node from beam.nodes."
        )
    is_address = run.data.path.startswith(_DATAFLOW_SCHEME)
    if node_id == _EXAMPLE_GEN and not is_address:
        got = "the embedded data" if run.data.path == EMBEDDED_DIGITS else f"'{run.data.path}'"
        raise InputError(
            f"data.path: got {got}, allowed with {_EXAMPLE_GEN} in beam.nodes: an address at gs://; or remove the node "
            "from beam.nodes."
        )
