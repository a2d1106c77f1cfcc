import os
from pathlib import Path

import pytest
from conformance_driver.runner import TIMED_OUT, SubprocessRunner


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "disk" / "gcs").mkdir(parents=True)
    (tmp_path / "claim").mkdir()
    return {tmp_path / "disk" / "gcs": "/gcs", tmp_path / "claim": "/models"}


def run(tmp_path, folders, code, *arguments, timeout_seconds=30):
    runner = SubprocessRunner(tmp_path / "logs", timeout_seconds=timeout_seconds)
    exit_code = runner.run(["python", "-c", code, *arguments], {"HOSTNAME": "pod-1", "OWN": "yes"}, folders)
    return exit_code, (tmp_path / "logs" / "pod-1.log").read_text()


def test_exit_code_and_output_are_returned(tmp_path, folders):
    assert run(tmp_path, folders, "import sys; print('hello'); sys.exit(3)") == (3, "hello\n")


def test_only_given_environment_variables_are_passed(tmp_path, folders, monkeypatch):
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    _, text = run(tmp_path, folders, "import os; print(sorted(os.environ))")
    assert "SECRET_OF_OURS" not in text
    assert {"OWN", "HOSTNAME", "DETLOOM_STORAGE_ROOT"} <= set(eval(text))


def test_paths_below_a_mount_are_rewritten_even_inside_json(tmp_path, folders):
    code = "import sys; print('\\n'.join(sys.argv[1:]))"
    arguments = [
        "/gcs/b/k",
        '{"push_to": "/models/demo", "nested": "{\\"dir\\": \\"/models\\"}"}',
        "gs://b/gcs/k",
        "/models2",
    ]
    _, text = run(tmp_path, folders, code, *arguments)
    claim = tmp_path / "claim"
    assert text.splitlines() == [
        str(tmp_path / "disk" / "gcs" / "b" / "k"),
        f'{{"push_to": "{claim}/demo", "nested": "{{\\"dir\\": \\"{claim}\\"}}"}}',
        "gs://b/gcs/k",
        "/models2",
    ]


def test_the_storage_root_is_passed_in_the_environment(tmp_path, folders):
    _, text = run(tmp_path, folders, "import os; print(os.environ['DETLOOM_STORAGE_ROOT'])")
    assert Path(text.strip()) == tmp_path / "disk"


def test_an_endless_command_is_killed(tmp_path, folders):
    exit_code, _ = run(tmp_path, folders, "import time; time.sleep(60)", timeout_seconds=1)
    assert exit_code == TIMED_OUT
    assert os.path.exists(tmp_path / "logs" / "pod-1.log")
