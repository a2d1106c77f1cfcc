"""Build the `tf.distribute` strategy for a configuration and an environment, and select the process that writes."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import GPUS_VARIABLE, Strategy, effective_strategy
from detloom.trainer_module.runtime.cluster import Cluster, find_cluster, read_number

_TPU_VARIABLES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_WORKER_ID")  # Cloud TPU, GKE, a TPU machine
_LOGGER = logging.getLogger("detloom")


def build_strategy(
    config: Strategy | None = None, environment: Mapping[str, str] | None = None
) -> tf.distribute.Strategy:
    """Build the strategy, and connect to the other machines or to the TPU if necessary.

    With several machines, call it before any other TensorFlow operation.

    Args:
        config: None uses DETLOOM_STRATEGY in `environment`, or selects by the available devices.
        environment: None uses the environment of the process.

    Raises:
        InputError: if the requested devices do not exist, or the environment is inconsistent.
    """
    environment = os.environ if environment is None else environment
    check_gpus(environment)
    config = config or effective_strategy(Strategy(), environment)
    cluster = find_cluster(environment)
    kind = config.kind if config.kind != "auto" else _found_kind(cluster, environment)
    if cluster is not None and cluster.num_tasks > 1 and kind != "multi_worker":
        raise InputError(
            f"strategy: got '{kind}', but the environment names {cluster.num_tasks} machines, and each would write "
            "the same run; use multi_worker, or start one machine."
        )
    match kind:
        case "multi_worker":
            strategy = _build_multi_worker(config, cluster)
        case "tpu":
            strategy = _connect_tpu(config, environment)
        case "mirrored":
            strategy = tf.distribute.MirroredStrategy(_mirrored_devices(config))
        case _:
            has_gpu = bool(tf.config.list_logical_devices("GPU"))
            strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if has_gpu else "/cpu:0")
    _LOGGER.info("Training on %s.", describe(strategy))
    return strategy


def check_gpus(environment: Mapping[str, str]) -> None:
    """Raise InputError if TensorFlow sees fewer GPUs than the job requests, because it would silently use the CPU.

    It initializes no device, so that machines can still be connected afterwards.
    """
    requested = read_number(environment, GPUS_VARIABLE, 0)
    num_seen = len(tf.config.list_physical_devices("GPU")) if requested else 0
    if num_seen < requested:
        raise InputError(
            f"{GPUS_VARIABLE}: the job requests {requested} for this machine, but TensorFlow sees {num_seen}. Use an "
            "image built with ACCELERATOR=gpu and a machine with NVIDIA's driver, and do not hide GPUs by "
            "CUDA_VISIBLE_DEVICES. See docs/gpu.md."
        )


def describe(strategy: tf.distribute.Strategy) -> str:
    """Describe a strategy, such as "4 devices (GPU), MirroredStrategy"."""
    devices = strategy.extended.worker_devices
    kinds = sorted({tf.DeviceSpec.from_string(device).device_type or "?" for device in devices})
    count = strategy.num_replicas_in_sync
    name = type(strategy).__name__.removesuffix("V2")
    return f"{count} device{'' if count == 1 else 's'} ({', '.join(kinds)}), {name}"


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return True if this process writes the run's output."""
    return place_of_worker(strategy)[0] == 0


def checkpoint_options(strategy: tf.distribute.Strategy) -> tf.train.CheckpointOptions:
    """Return options for checkpoints: with a remote TPU, this machine reads and writes the files, not the TPU's host.

    Source: https://www.tensorflow.org/api_docs/python/tf/train/CheckpointOptions. Not tested on a TPU.
    """
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return tf.train.CheckpointOptions(experimental_io_device="/job:localhost" if is_tpu else None)


def place_of_worker(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Return the number of this process among the workers, and the number of workers; the chief is 0."""
    resolver = strategy.cluster_resolver
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or resolver is None:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    chief, worker = (tuple(tasks.get(name, ())) for name in ("chief", "worker"))
    cluster = Cluster(chief=chief, worker=worker, task_type=resolver.task_type, task_index=resolver.task_id)
    return cluster.place, cluster.num_tasks


@contextlib.contextmanager
def worker_out_dir(strategy: tf.distribute.Strategy, out_dir: Path) -> Iterator[Path]:
    """Provide the output folder of this process: `out_dir` on the chief, a temporary folder on other workers.

    All workers have to save a checkpoint together, because some variables are aggregated over all of them; only the
    chief's copy is kept. All workers resume from the chief's folder.
    """
    if is_chief(strategy):
        yield out_dir
        return
    with tempfile.TemporaryDirectory(prefix="detloom-worker-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _found_kind(cluster: Cluster | None, environment: Mapping[str, str]) -> str:
    if cluster is not None and cluster.num_tasks > 1:
        return "multi_worker"
    if any(environment.get(name) for name in _TPU_VARIABLES):
        return "tpu"
    return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one_device"


def _build_multi_worker(config: Strategy, cluster: Cluster | None) -> tf.distribute.Strategy:
    if cluster is None:
        raise InputError(
            "strategy: got 'multi_worker', but the environment names no other machine; set TF_CONFIG or one of the "
            "alternatives in docs/distributed.md."
        )
    implementation = tf.distribute.experimental.CommunicationImplementation(config.communication.upper())
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.tasks()),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        rpc_layer="grpc",
    )
    _LOGGER.info("This process is %s %d of %s.", cluster.task_type, cluster.task_index, cluster.tasks())
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver,
            communication_options=tf.distribute.experimental.CommunicationOptions(implementation=implementation),
        )
    except RuntimeError as error:  # a TensorFlow operation ran before
        if "startup" not in str(error):
            raise
        raise InputError(
            f"strategy: machines have to be connected before TensorFlow runs operations ({error})."
        ) from error


def _connect_tpu(config: Strategy, environment: Mapping[str, str]) -> tf.distribute.Strategy:
    """Connect to a TPU by name, or to the TPU of this machine. Not tested on a TPU."""
    in_kubernetes = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS" in environment  # TensorFlow reads the address from there
    name = config.name or environment.get("TPU_NAME") or (None if in_kubernetes else "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name, config.zone or None, config.project or None)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, ImportError, tf.errors.OpError) as error:
        cause = " ".join(str(error).split())[:300]
        raise InputError(
            f"strategy: got 'tpu' with the name '{config.name}', but no TPU responds ({cause}); "
            "set its name, project and zone, and install TensorFlow's build for TPUs."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _mirrored_devices(config: Strategy) -> list[str]:
    """Return full device names.

    Raises:
        InputError: for a device that does not exist.
    """
    existing = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    chosen = [device.removeprefix("/").removeprefix("device:").upper() for device in config.devices]
    missing = [device for device in chosen if device not in existing]
    if missing:
        raise InputError(f"strategy.devices: got {', '.join(missing)}, allowed: {', '.join(existing)}.")
    gpus, cpus = ([name for name in existing if name.startswith(kind)] for kind in ("GPU", "CPU"))
    return chosen or gpus or cpus
