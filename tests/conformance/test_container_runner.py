import os
from pathlib import Path

import pytest
from conformance_driver.runner import TIMED_OUT
from container_runner import ContainerRunner


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Install a fake podman that records its arguments and one variable, and runs `script`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "script").write_text("echo from the container")
    podman = folder / "podman"
    podman.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" >> {folder}/arguments\nprintf "%s" "$TOKEN" > {folder}/token\n'
        f'[ "$1" = rm ] || . {folder}/script\n'
    )
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def run(tmp_path: Path, **options) -> tuple[int, Path]:
    mounted = tmp_path / "disk"
    (mounted / "inner").mkdir(parents=True)
    runner = ContainerRunner("image:1", tmp_path / "logs", **options)
    env = {"HOSTNAME": "demo-1", "TOKEN": "secret value"}
    return runner.run(["python", "-m", "room", "{{x}}"], env, {mounted: "/minio"}), mounted


def test_the_command_replaces_the_entry_point_and_values_are_not_arguments(tmp_path, engine):
    code, mounted = run(tmp_path, options=("--network=none",))
    assert code == 0
    assert (engine / "arguments").read_text().split("\n")[:-1] == [
        *("run", "--rm", "--name=demo-1", "--network=none", "--env", "HOSTNAME", "--env", "TOKEN"),
        *("--volume", f"{mounted}:/minio", "--entrypoint=python", "image:1", "-m", "room", "{{x}}"),
    ]
    assert (engine / "token").read_text() == "secret value"
    assert (tmp_path / "logs" / "demo-1.log").read_text() == "from the container\n"


def test_the_exit_code_comes_from_the_container(tmp_path, engine):
    (engine / "script").write_text("exit 3")
    assert run(tmp_path)[0] == 3


def test_the_user_of_the_image_can_write_to_mounted_folders(tmp_path, engine):
    _, mounted = run(tmp_path)
    assert [(path.stat().st_mode & 0o777) for path in (mounted, mounted / "inner")] == [0o777, 0o777]


def test_a_container_over_its_time_limit_is_removed(tmp_path, engine):
    (engine / "script").write_text("exec sleep 60")
    assert run(tmp_path, options=(), timeout_seconds=1)[0] == TIMED_OUT
    assert (engine / "arguments").read_text().endswith("rm\n--force\ndemo-1\n")


def test_a_missing_container_engine_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="podman nor docker"):
        ContainerRunner("image:1", tmp_path)
