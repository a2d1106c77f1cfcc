"""Apache Beam's options for each node: its own work, or work given to Dataflow or Flink by `beam` of the run file."""

import logging

from detloom import __version__
from detloom.schemas.beam_config import Dataflow, Flink
from detloom.schemas.data_config import EMBEDDED_DIGITS
from detloom.schemas.errors import InputError
from detloom.schemas.run_file import Place, RunFile

WHEEL_FOLDER = "/opt/detloom/dist"  # in the image: the wheel that it was made of
_DATAFLOW_SCHEME = "gs://"
_EXAMPLE_GEN, _VALIDATOR = "DetectionExampleGen", "DatasetValidator"
_LOGGER = logging.getLogger("detloom")


def beam_args_of(run: RunFile, node_id: str, place: Place) -> list[str]:
    """The options of a node, complete: nothing of the pipeline's comes beside them.

    Raises:
        InputError: if workers elsewhere could not see what the node reads or writes.
    """
    beam = run.beam
    if beam is None or node_id not in beam.nodes:
        return list(run.beam_args)
    if place == "local" and beam.dataflow is not None:  # the same run file is for all places
        _LOGGER.info("%s does its work here: Dataflow's workers see no folder of this machine.", node_id)
        return list(run.beam_args)
    _check_storage(run, node_id, place)
    if beam.dataflow is not None:
        return dataflow_args(beam.dataflow, run, node_id)
    assert beam.flink is not None
    return flink_args(beam.flink)


def is_elsewhere(beam_args: list[str]) -> bool:
    """Whether these options give the work to workers that do not see this machine's folders."""
    return any(arg in ("--runner=DataflowRunner", "--runner=FlinkRunner") for arg in beam_args)


def dataflow_args(dataflow: Dataflow, run: RunFile, node_id: str) -> list[str]:
    """Without a job's name, which two runs at the same time could not share: Beam makes one."""
    args = {
        "runner": "DataflowRunner",
        "project": dataflow.project,
        "region": dataflow.region,
        "temp_location": dataflow.temp_location.rstrip("/"),
        "machine_type": dataflow.machine_type,
        "max_num_workers": str(dataflow.max_workers),
        "service_account_email": dataflow.service_account,
        "subnetwork": dataflow.subnetwork,
        **_package(dataflow),
    }
    labels = (f"detloom-pipeline={run.name}", f"detloom-node={node_id.lower()}")
    return [f"--{key}={value}" for key, value in args.items() if value] + [f"--labels={label}" for label in labels]


def _package(dataflow: Dataflow) -> dict[str, str]:
    """An image has all; without one, workers install the wheel that lies in the node's image."""
    if dataflow.worker_image:
        return {"sdk_container_image": dataflow.worker_image, "sdk_location": "container"}
    return {"extra_package": f"{WHEEL_FOLDER}/{wheel_name()}"}


def wheel_name() -> str:
    """File name of this version's wheel."""
    return f"detloom-{__version__}-py3-none-any.whl"


def flink_args(flink: Flink) -> list[str]:
    """Beam's options for a Flink cluster."""
    args = {
        "runner": "FlinkRunner",
        "flink_master": flink.master,
        "flink_version": flink.version,
        "flink_job_server_jar": flink.job_server_jar,
        "parallelism": str(flink.parallelism),
        "environment_type": flink.environment_type,
        "environment_config": flink.environment_config if flink.environment_type != "LOOPBACK" else "",
    }
    # The uber jar is put together in Python and sent to Flink's REST server: the node's image needs no Java.
    return [*(f"--{key}={value}" for key, value in args.items() if value), "--flink_submit_uber_jar"]


def _check_storage(run: RunFile, node_id: str, place: Place) -> None:
    if place == "local":
        return  # Flink: its task managers see the same folders, as the documentation of `flink` asks
    settings = getattr(run, place)
    root = settings.pipeline_root if settings is not None else ""
    if not root.startswith(_DATAFLOW_SCHEME):
        raise InputError(
            f"{place}.pipeline_root: got '{root}', allowed with {node_id} in beam.nodes: an address at gs://, which "
            "workers elsewhere reach; or take it out of beam.nodes."
        )
    if node_id == _VALIDATOR:
        raise InputError(
            f"beam.nodes: got {_VALIDATOR}, allowed on {place.capitalize()}: the others; it writes to folders only, "
            "which workers elsewhere do not see."
        )
    is_address = run.data.path.startswith(_DATAFLOW_SCHEME)
    if node_id == _EXAMPLE_GEN and not is_address:
        got = "the embedded data" if run.data.path == EMBEDDED_DIGITS else f"'{run.data.path}'"
        raise InputError(
            f"data.path: got {got}, allowed with {_EXAMPLE_GEN} in beam.nodes: an address at gs://; or take it out of "
            "beam.nodes."
        )
