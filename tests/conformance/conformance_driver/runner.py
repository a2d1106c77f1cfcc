"""The interface that starts a container. `SubprocessRunner` runs its command here; others can start real containers."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from conformance_driver.object_store import FOLDERS

STORAGE_ROOT = "DETLOOM_STORAGE_ROOT"  # read by detloom.pipelines.container.task_storage
POD_NAME = "HOSTNAME"  # set in every container
TIMED_OUT = 124


class Runner(Protocol):
    """Starts a container and waits until it ends.

    Attributes:
        logs: folder with the log of each container, named by its pod.
    """

    logs: Path

    def run(self, command: list[str], env: dict[str, str], mounts: dict[Path, str]) -> int:
        """Return the exit code.

        Args:
            env: variables of the container in addition to its image's; HOSTNAME is the pod's name.
            mounts: local folders, and their paths in the container.
        """


class SubprocessRunner:
    """Run commands on this machine.

    A process has no mounts: paths below them are replaced in its arguments and variables, and the environment gives the
    storage root for addresses that become paths. Packed settings hide their paths, so a volume must be mounted at the
    path of its own folder.
    """

    def __init__(self, logs: Path, image_env: Mapping[str, str] | None = None, timeout_seconds: float = 1800) -> None:
        """Store the settings that replace the image.

        Args:
            logs: folder that gets one file per container, named by the pod.
            image_env: variables that an image would set; no other variable of this process is passed.
        """
        self.logs = logs
        self._timeout = timeout_seconds
        self._image_env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(logs),
            "LANG": "C.UTF-8",
            **(image_env or {}),
        }
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, command: list[str], env: dict[str, str], mounts: dict[Path, str]) -> int:
        """Run the command; see `Runner`. A command over the time limit is killed."""
        volumes = {folder: path for folder, path in mounts.items() if path.lstrip("/") not in FOLDERS.values()}
        assert all(path == str(folder) for folder, path in volumes.items()), volumes
        shown = {name: _without_mounts(value, mounts) for name, value in env.items()}
        (root,) = {folder.parent for folder, path in mounts.items() if path.lstrip("/") in FOLDERS.values()}
        with open(self.logs / f"{env[POD_NAME]}.log", "wb") as log:
            process = subprocess.Popen(
                [_without_mounts(argument, mounts) for argument in command],
                env={**self._image_env, **shown, STORAGE_ROOT: str(root)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.logs,
                start_new_session=True,
            )
            return self._wait(process)

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return TIMED_OUT


def _without_mounts(text: str, mounts: Mapping[Path, str]) -> str:
    """Replace mount paths in a text by local folders, even inside JSON."""
    folders = {path: str(folder) for folder, path in mounts.items()}
    longest_first = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./:-])({longest_first})(?=[/\"\\]|$)", lambda match: folders[match[1]], text)
