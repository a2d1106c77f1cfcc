"""Read a run file: merge its layers, check it, and resolve its paths for the place where the pipeline runs."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.load_config import apply_layer, load_tree
from detloom.schemas.model.checkpoint_address import is_web_address
from detloom.schemas.model.config import IMAGENET, PLACEHOLDER, Train
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport, refusal
from detloom.schemas.reading.overrides import Located, merge
from detloom.schemas.reading.redact import hide_secrets, redact
from detloom.schemas.reading.typed_dict import KeyPath, from_dict, place_of, show_value
from detloom.schemas.reading.yaml_file import read_yaml
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.push import REMOTE_SCHEMES, is_remote
from detloom.schemas.run_file.run_file import CONFIG_SECTIONS, DEFAULT_DETECTOR, Place, RunFile

_IN_BUCKETS = ("gs://",)  # of data and artifacts of runs on this machine, which TFX and TensorFlow read
_IN_CONTAINERS = "gs://"  # scheme that TensorFlow supports in our image; s3:// needs tensorflow-io
PATH_VARIABLE = re.compile(r"\$\{(\w+)\}")  # an environment variable in a path
_REMOTE: tuple[Place, ...] = ("kubeflow", "vertex")


def load_run_tree(path: Path, overrides: Sequence[Located] = ()) -> tuple[Located, PipelineConfigReport | None]:
    """Return the plain tree of a run file, merged over its detector, and the report on a `pipeline.config`.

    Args:
        overrides: layers over the file, in order.

    Raises:
        InputError: if the file or the detector cannot be read.
    """
    data, locate = read_yaml(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}:1: got no mapping, allowed: a mapping with keys such as name, data, detector, train.")
    if isinstance(data.get("train"), str) and "data" not in data:
        raise InputError(f"{path}: is a YOLO data set, not a run file; give its folder, '{path.parent}'.")
    file, over = Located(data, locate), merge(Located({}, lambda _: str(path)), *overrides)
    tree = merge(file, over)
    detector, where = tree.data.get("detector", DEFAULT_DETECTOR), place_of(tree.locate, ("detector",))
    if not isinstance(detector, str):
        got = show_value((), detector)
        raise InputError(f"{where}: got {got}, allowed: the name of a preset or the path of a file.")
    try:
        config, report = load_tree(detector, _base_folder("detector", path, overrides), above=tree)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for layer in (file, over):
        sections = {key: value for key, value in layer.data.items() if key in CONFIG_SECTIONS}
        config = apply_layer(config, Located(sections, layer.locate))

    def locate_key(key_path: KeyPath) -> str:
        return (config if key_path and key_path[0] in CONFIG_SECTIONS else tree).locate(key_path)

    empty: dict[str, Any] = {section: {} for section in CONFIG_SECTIONS}
    return Located({**empty, **tree.data, **config.data}, locate_key), report


def build_run(tree: Located) -> RunFile:
    """Build and check a run file from a tree; keep its paths as written."""
    return from_dict(RunFile, tree.data, locate=tree.locate)


def read_run_file(
    path: Path, workspace: Path | None = None, overrides: Sequence[Located] = (), *, place: Place = "local"
) -> RunFile:
    """Read and check a run file, and make its paths absolute.

    Args:
        workspace: replaces the file's workspace.
        overrides: layers over the file, in order.
        place: where the pipeline will run; if not "local", paths are those in the containers.

    Raises:
        InputError: with file, line, key, what was found and what is allowed.
    """
    tree, report = load_run_tree(path, overrides)
    if report is not None and report.refused:
        raise refusal(report)
    run = build_run(tree)
    return (
        resolve_paths(run, tree, path, workspace, overrides)
        if place == "local"
        else resolve_remote_paths(run, tree, path, place)
    )


def resolve_paths(
    run: RunFile, tree: Located, path: Path, workspace: Path | None = None, overrides: Sequence[Located] = ()
) -> RunFile:
    """Return the run with absolute paths and expanded `${NAME}` variables.

    Args:
        tree: the tree of the run; locates each path for messages.
        path: path of the run file, to which other paths are relative.
        workspace: replaces the run's workspace.
        overrides: their paths are relative to the current folder.

    Raises:
        InputError: for a variable that is not set, an address instead of a folder, or a missing data folder.
    """

    def resolve(value: str, key: str) -> str:
        where = place_of(tree.locate, tuple(key.split(".")))
        expanded = _expand(value, where)
        if "://" in expanded or "\0" in expanded:
            raise InputError(f"{where}: got '{redact(value)}', allowed: a folder on this machine.")
        return str((_base_folder(key, path, overrides) / expanded).absolute())

    def resolve_folder(value: str, key: str, schemes: tuple[str, ...] = REMOTE_SCHEMES) -> str:
        where = place_of(tree.locate, tuple(key.split(".")))
        address = _expand(value, where)
        if "://" not in address:
            return resolve(value, key)
        if not (is_remote(address) and address.startswith(schemes)) or "\0" in address:
            allowed = f"a folder, or an address with {', '.join(schemes)}"
            raise InputError(f"{where}: got '{redact(value)}', allowed: {allowed}.")
        _check_no_secret(address, value, where)
        return address

    if workspace is None:
        workspace = Path(resolve(run.workspace, "workspace") if run.workspace else f"detloom_runs/{run.name}")
    workspace = workspace.absolute()
    if run.data.path != EMBEDDED_DIGITS:
        data_path = resolve_folder(run.data.path, "data.path", _IN_BUCKETS)
        is_local = "://" not in data_path
        if is_local and "{" not in data_path and not os.path.isdir(data_path):  # TFX resolves {SPAN} later
            where = place_of(tree.locate, ("data", "path"))
            raise InputError(f"{where}: got '{redact(run.data.path)}', which is not a folder.")
        run = replace(run, data=replace(run.data, path=data_path))
    if run.push.vertex is not None and run.push_to:
        where = place_of(tree.locate, ("push_to",))
        raise InputError(f"{where}: got both push_to and push.vertex, allowed: one of the two.")
    if run.pipeline_root:
        root = resolve_folder(run.pipeline_root, "pipeline_root", _IN_BUCKETS)
        if "://" not in root:
            where = place_of(tree.locate, ("pipeline_root",))
            raise InputError(f"{where}: got '{redact(root)}', allowed: an address at gs://; a folder is in workspace.")
        run = replace(run, pipeline_root=root.rstrip("/"))
    push_to = resolve_folder(run.push_to, "push_to") if run.push_to else str(workspace / "serving")
    if run.retrain is not None:
        records = resolve_folder(run.retrain.records, "retrain.records") if run.retrain.records else push_to
        run = replace(run, retrain=replace(run.retrain, records=records))
    return replace(run, workspace=str(workspace), push_to=push_to, train=resolve_checkpoint(run.train, path, overrides))


def _base_folder(key: str, path: Path, overrides: Sequence[Located]) -> Path:
    """Return the folder to which the path at `key` is relative: the current one if an override gives it."""
    is_override = any(layer.holds(tuple(key.split("."))) for layer in overrides)
    return Path.cwd() if is_override else path.resolve().parent


def resolve_checkpoint(train: Train, path: Path, overrides: Sequence[Located] = ()) -> Train:
    """Make the path of `fine_tune_checkpoint` absolute.

    Args:
        path: path of the run file, to which the checkpoint is relative.
        overrides: a checkpoint that they name is relative to the current folder.
    """
    written = train.fine_tune_checkpoint.strip()
    if written in ("", IMAGENET) or "://" in written or written.startswith(PLACEHOLDER):
        return train
    folder = _base_folder("train.fine_tune_checkpoint", path, overrides)
    address = (folder / os.path.expanduser(written)).absolute()
    return replace(train, fine_tune_checkpoint=str(address))


def resolve_remote_paths(run: RunFile, tree: Located, path: Path, place: Place) -> RunFile:
    """Return the run with the paths and addresses used in its containers; expand `${NAME}` variables on this machine.

    Args:
        tree: the tree of the run; locates each path for messages.
        path: path of the run file, to which the path of a certificate is relative; that file is read on this machine.

    Raises:
        InputError: for a missing section, a variable that is not set, or a path that containers cannot use.
    """
    settings = getattr(run, place)
    if settings is None:
        raise InputError(f"{tree.locate(())}: {place}: the section is missing; docs/{place}.md describes it.")

    def resolve(value: str, key: str) -> str:
        where = place_of(tree.locate, tuple(key.split(".")))
        address = _expand_variables(value, where)
        is_address = address.startswith(_IN_CONTAINERS) and len(address) > len(_IN_CONTAINERS)
        if "\0" in address or not (is_address or address.startswith("/")):
            allowed = f"an absolute path in the containers or an address at {_IN_CONTAINERS}"
            raise InputError(f"{where}: got '{redact(value)}', allowed on {place.capitalize()}: {allowed}.")
        if is_address:
            _check_no_secret(address, value, where)
        return address

    if run.data.path != EMBEDDED_DIGITS:
        run = replace(run, data=replace(run.data, path=resolve(run.data.path, "data.path")))
    check_checkpoint(run.train.fine_tune_checkpoint, tree, place.capitalize())
    if run.push.vertex is not None:
        if run.push_to:
            where = place_of(tree.locate, ("push_to",))
            raise InputError(f"{where}: got both push_to and push.vertex, allowed: one of the two.")
        push_to = ""
    else:
        root = settings.pipeline_root
        default = f"{root.rstrip('/')}/{run.name}/serving" if root.startswith(_IN_CONTAINERS) else ""
        push_to = resolve(run.push_to or default, "push_to")
    if run.retrain is not None:
        records = resolve(run.retrain.records or push_to, "retrain.records")
        run = replace(run, retrain=replace(run.retrain, records=records))
    if place == "kubeflow" and run.kubeflow is not None and run.kubeflow.ca_certificate:
        where = place_of(tree.locate, ("kubeflow", "ca_certificate"))
        certificate = path.resolve().parent / _expand(run.kubeflow.ca_certificate, where)
        run = replace(run, kubeflow=replace(run.kubeflow, ca_certificate=str(certificate)))
    return replace(run, workspace="", push_to=push_to)


def check_checkpoint(checkpoint: str, tree: Located, place: str) -> None:
    """Raise InputError for a relative path, which a container would look up in its image.

    Args:
        tree: locates the path for the message.
        place: name of the place where the container runs, for the message.
    """
    checkpoint = checkpoint.strip()
    is_known = checkpoint in ("", IMAGENET) or is_web_address(checkpoint)
    if not is_known and not checkpoint.startswith(("/", _IN_CONTAINERS)):
        where = place_of(tree.locate, ("train", "fine_tune_checkpoint"))
        raise InputError(
            f"{where}: got '{redact(checkpoint)}', allowed on {place}: an "
            f"absolute path in the containers, an address at {_IN_CONTAINERS}, the https address of an archive, or "
            f"{IMAGENET}."
        )


def check_paths(run: RunFile, tree: Located, path: Path, overrides: Sequence[Located] = ()) -> None:
    """Raise InputError unless the paths are valid on this machine or in a place that the run file configures."""
    errors = []
    for place in (*(place for place in _REMOTE if getattr(run, place) is not None), "local"):
        try:
            if place == "local":
                resolve_paths(run, tree, path, overrides=overrides)
            else:
                resolve_remote_paths(run, tree, path, place)
            return
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _expand(value: str, where: str) -> str:
    return os.path.expanduser(_expand_variables(value, where))


def _expand_variables(value: str, where: str) -> str:
    def from_environment(match: re.Match[str]) -> str:
        name = match.group(1)
        if not os.environ.get(name):
            raise InputError(f"{where}: the environment variable {name} is not set; set it, or write the path itself.")
        return os.environ[name]

    return PATH_VARIABLE.sub(from_environment, value)


def _check_no_secret(address: str, written: str, where: str) -> None:
    """Raise InputError for an address with a user or parameters, because metadata, logs and compiled files contain
    it."""
    if hide_secrets(address) != address:
        raise InputError(
            f"{where}: got '{redact(written)}' with a user or parameters, allowed: an address without them; storage "
            "clients read their credentials from the environment."
        )
