"""Find the production model, which serves now in a folder of versions or at an endpoint, and copy it to a local folder.

An unchanged pipeline that runs again has already pushed its candidate, which would then be compared with itself. So the
candidate is skipped, and the version before it is taken, but none that was rolled back.
"""

import errno
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from detloom.components.pusher.destination import MODEL_FILE, Destination
from detloom.components.pusher.endpoint import (
    EndpointModel,
    find_served,
    is_endpoint,
    read_endpoint,
    rolled_back_models,
)
from detloom.components.pusher.manifest import Manifest, build_manifest, copy_files, find_files, is_of_model
from detloom.components.pusher.versions import (
    complete_versions,
    open_destination,
    pushed_versions,
    read_version_manifest,
    rolled_back_identities,
)
from detloom.components.storage.local_copy import copy_folder
from detloom.components.storage.storage import open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.replace_when_done import replace_when_done

_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class CopiedVersion:
    """A copied model: number and address of the version, or resource name and address of an endpoint's model.

    `digest` identifies the content as in `PushResult`.
    """

    version: str
    address: str
    digest: str


def copy_production_model(
    production: str, saved_model_dir: Path, candidate_dir: Path | None = None
) -> CopiedVersion | None:
    """Copy the SavedModel that serves now; without one, return None and create no folder.

    In a folder, a version without a manifest (added by hand) counts as well, because model servers load it too.

    Args:
        production: folder of versions, or its address, or that of an endpoint.
        saved_model_dir: created by one rename after the content has been verified.
        candidate_dir: a SavedModel to skip.

    Raises:
        InputError: the newest version differs from what was pushed, or Vertex AI does not answer.
        OSError: it cannot be read.
    """
    candidate = build_manifest(candidate_dir).digest if candidate_dir is not None else None
    with replace_when_done(saved_model_dir) as partial:
        for copied in _copies(production, candidate, partial):
            if copied.digest != candidate:
                return copied
        shutil.rmtree(partial, ignore_errors=True)  # the candidate
    return None


def _copies(production: str, candidate: str | None, folder: Path) -> Iterator[CopiedVersion]:
    """Copy the model that serves now, and each time that another is asked for, the one before it."""
    if is_endpoint(production):
        for model in _production_models(production):
            shutil.rmtree(folder, ignore_errors=True)
            copy_folder(open_storage(model.uri), "", folder, is_of_model)
            yield CopiedVersion(version=model.name, address=model.uri, digest=build_manifest(folder).digest)
        return
    destination = open_destination(production)
    for version, manifest in production_versions(destination, candidate):
        copied = _copy(destination, version, manifest, folder)
        if copied is not None:
            yield CopiedVersion(version=str(version), address=f"{destination.address}/{version}", digest=copied.digest)


def _production_models(endpoint: str) -> Iterator[EndpointModel]:
    """Yield the model that the endpoint serves, and then those uploaded before it, the newest first."""
    models = read_endpoint(endpoint)
    served = find_served(models)
    if served is None:
        return
    rolled_back = {each.identity for each in rolled_back_models(models)}
    for model in (served, *(each for each in models if each.uploaded < served.uploaded)):
        if not model.uri:
            _LOGGER.warning("%s: the model %s has no SavedModel; skipped.", endpoint, model.name)
        elif not model.identity or model.identity not in rolled_back:
            yield model


def production_versions(destination: Destination, candidate: str | None) -> Iterator[tuple[int, Manifest | None]]:
    """Yield the version that serves now, and in case it cannot be used the earlier ones, the newest first.

    Args:
        candidate: digest of the model to skip.
    """
    rolled_back = rolled_back_identities(destination, pushed_versions(destination))
    for version in sorted(complete_versions(destination), reverse=True):
        manifest = read_version_manifest(destination, version)
        if manifest is not None and manifest.digest == candidate:
            _LOGGER.debug("Version %d in %s is the candidate itself.", version, redact(destination.address))
        elif manifest is not None and manifest.identity in rolled_back:
            _LOGGER.debug("Version %d in %s was rolled back.", version, redact(destination.address))
        else:
            yield version, manifest


def _copy(destination: Destination, version: int, manifest: Manifest | None, folder: Path) -> Manifest | None:
    """Copy one version and return its manifest.

    Return None if the version was removed in the meantime (by a push with `keep_versions`) or holds no SavedModel.
    """
    where = f"{redact(destination.address)}/{version}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with destination.fetch(version) as source:
            copy_files(find_files(source), folder)
        copied = build_manifest(folder)
    except OSError as error:
        if error.errno != errno.ENOENT or version in complete_versions(destination):
            raise
        return None
    wrong = manifest.differences_from(copied.files) if manifest is not None else []
    if wrong and version not in complete_versions(destination):
        return None
    if wrong:
        raise InputError(
            f"{where}: differs from what was pushed ({'; '.join(wrong[:3])}), so it cannot be used as a baseline; roll "
            "back to an intact version with detloom rollback, or remove it."
        )
    if MODEL_FILE not in copied.files:
        _LOGGER.warning("%s: holds no SavedModel; skipped.", where)
        return None
    return copied
