"""Check that the Dockerfiles agree with the code, and contain nothing private."""

import re
from pathlib import Path

import pytest

from detloom.components.fingerprints import LAYERS
from detloom.pipelines.commands import image_check

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TPU = (ROOT / "Dockerfile.tpu").read_text()
PINS = (ROOT / "constraints" / "tfx-1.16.txt").read_text()


def copied_from_the_checkout() -> set[str]:
    found = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        found |= {source.replace("${TFX_LINE}", "1.16") for source in line.split()[:-1]}
    return found


def test_all_copied_files_exist_and_reach_the_builder():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    let_through = {line[1:].replace("*", "tfx-1.16") for line in ignored if line.startswith("!")}
    assert copied_from_the_checkout() == let_through
    assert all((ROOT / source).exists() for source in let_through)


def test_the_wheel_stage_has_the_whole_package():
    assert {"detloom", *LAYERS} <= copied_from_the_checkout()


def test_folders_match_the_paths_in_the_code():
    assert f"--wheel-dir {image_check.IMAGE_FOLDER}/dist" in DOCKERFILE
    assert f"{image_check.IMAGE_FOLDER}/constraints/" in DOCKERFILE
    assert f'ENTRYPOINT ["{image_check.BEAM_BOOT}"]' in DOCKERFILE
    assert f"ADD --chmod=755 ${{LIBTPU}} {image_check.LIBTPU}\n" in TPU
    assert " ".join(image_check.STORAGE_FOLDERS) in DOCKERFILE


def test_versions_are_those_of_the_constraints():
    (beam,) = re.findall(r"^apache-beam==(\S+)", PINS, re.MULTILINE)
    (tensorflow,) = re.findall(r"^tensorflow==(\S+)", PINS, re.MULTILINE)
    assert f"BEAM_IMAGE=docker.io/apache/beam_python3.10_sdk:{beam}\n" in DOCKERFILE
    assert f"and {tensorflow}, according to the table" in TPU


@pytest.mark.parametrize("text", [DOCKERFILE, TPU], ids=["Dockerfile", "Dockerfile.tpu"])
def test_the_dockerfile_contains_no_package_index_and_no_credential(text):
    commands = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"index-url|find-links|trusted-host|PIP_[A-Z]|password|token", commands)


def test_the_image_has_an_unprivileged_user_and_no_entry_point():
    image = DOCKERFILE[DOCKERFILE.index(" AS image\n") : DOCKERFILE.index(" AS beam-sdk\n")]
    assert "ARG RUN_AS=1000\n" in image
    assert image.index("USER ${RUN_AS}") > image.rindex("\nRUN ")
    assert "ENTRYPOINT []\n" in image
    assert DOCKERFILE.rstrip().endswith("FROM image")
