"""Start a task's command in a container with podman or docker: the driver's `Runner` for `make test-image`."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from conformance_driver.runner import POD_NAME, TIMED_OUT

# As strict as a cluster can be: no network, no privileges, only mounted folders and /tmp are writable.
_CONFINED = ("--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")
_READ_WRITE_ALL = 0o777  # the mode of an emptyDir


class ContainerRunner:
    """The driver's `Runner` for containers, which run as the image's own user."""

    def __init__(
        self, image: str, logs: Path, options: Sequence[str] = _CONFINED, timeout_seconds: float = 3600
    ) -> None:
        """Store the image.

        Args:
            logs: folder that gets one file per container, named by the pod.
            options: for `podman run` or `docker run`.
        """
        engine = shutil.which("podman") or shutil.which("docker")
        if engine is None:
            raise FileNotFoundError("neither podman nor docker is on the PATH")
        self._engine, self._image, self._options = engine, image, tuple(options)
        self._timeout = timeout_seconds
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, command: list[str], env: dict[str, str], mounts: dict[Path, str]) -> int:
        """Run a container; kill it after the time limit."""
        name = env[POD_NAME]
        for folder in mounts:
            _open_to_all(folder)
        # Only names on the command line, which every user can read; values are passed in the engine's environment.
        variables = [argument for variable in env for argument in ("--env", variable)]
        volumes = [argument for folder, path in mounts.items() for argument in ("--volume", f"{folder}:{path}")]
        start = [self._engine, "run", "--rm", f"--name={name}", *self._options, *variables, *volumes]
        # The command replaces the image's entry point, as in a pod.
        start += [f"--entrypoint={command[0]}", self._image, *command[1:]]
        with open(self.logs / f"{name}.log", "wb") as log:
            try:
                done = subprocess.run(
                    start,
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=self._timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                subprocess.run([self._engine, "rm", "--force", name], capture_output=True, check=False)
                return TIMED_OUT
        return done.returncode


def _open_to_all(folder: Path) -> None:
    """Make folders writable, because the image's user differs from this process's."""
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, file) for file in files)):
            if os.stat(path).st_uid == os.getuid():  # files of an earlier container keep their owner
                os.chmod(path, _READ_WRITE_ALL)
