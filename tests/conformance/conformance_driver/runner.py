"""What starts a container. `SubprocessRunner` runs its command here; another one may start a real container."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from conformance_driver.object_store import FOLDERS

STORAGE_ROOT = "DETLOOM_STORAGE_ROOT"  # read by detloom.pipelines.container.storage
POD_NAME = "HOSTNAME"  # every container has it
TIMED_OUT = 124


class Runner(Protocol):
    """Starts a container and waits for its end."""

    def run(self, command: list[str], env: dict[str, str], mounts: dict[Path, str]) -> int:
        """Returns the exit code.

        Args:
            env: of the container, beside what its image has; HOSTNAME is the pod's name.
            mounts: folders that exist here, and where they are in the container.
        """


class SubprocessRunner:
    """Runs commands on this machine. A process has no mounts: paths below them are rewritten in its arguments and
    variables, and the environment says where storage is for addresses that become paths."""

    def __init__(self, logs: Path, image_env: Mapping[str, str] | None = None, timeout_seconds: float = 1800) -> None:
        """Take what stands for the image.

        Args:
            logs: folder that gets one file a container, by the pod's name.
            image_env: what an image would set; nothing else of this process's environment arrives.
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
        """See `Runner`; a command that takes too long is killed."""
        shown = {name: _without_mounts(value, mounts) for name, value in env.items()}
        (root,) = {folder.parent for folder, path in mounts.items() if path.lstrip("/") in FOLDERS.values()}
        with open(self.logs / f"{env[POD_NAME]}.log", "wb") as log:
            try:
                done = subprocess.run(
                    [_without_mounts(argument, mounts) for argument in command],
                    env={**self._image_env, **shown, STORAGE_ROOT: str(root)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.logs,
                    timeout=self._timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return TIMED_OUT
        return done.returncode


def _without_mounts(text: str, mounts: Mapping[Path, str]) -> str:
    """Text with the folders themselves in place of where they are mounted; paths in JSON too."""
    folders = {path: str(folder) for folder, path in mounts.items()}
    longest_first = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./:-])({longest_first})(?=[/\"\\]|$)", lambda match: folders[match[1]], text)
