import shutil
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_choice_of_the_accelerator_outlasts_a_set_up_that_did_not_finish(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("setup_venv.sh", "own_pip_settings.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "scripts/find_python.sh").write_text("echo 1.16 3.10.13 false")
    for variables in ({"ACCELERATOR": "gpu"}, {}):
        environment = {"PATH": "/usr/bin:/bin", "CXX": "true", **variables}
        done = subprocess.run(["bash", tmp_path / "scripts/setup_venv.sh"], env=environment, capture_output=True)
        assert b"virtual environment failed with code 1" in done.stderr
        assert (tmp_path / ".venv/detloom-venv").read_text() == "accelerator=gpu\n"
