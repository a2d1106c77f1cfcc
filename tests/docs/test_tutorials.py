"""Every command of each tutorial runs, in order, in an empty folder, and prints what the page shows.

Blocks of `bash` are run. Blocks of `text` show a part of the output of the commands before them; digits may differ, and
"..." stands for any text. Blocks of `console` need a cluster, root or a person; `test_code_blocks.py` parses them.
Training runs are shortened with `--set`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fenced_blocks import ROOT, read_blocks

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

SHORT = """
model.image_resizer: {type: FixedShapeResizer, height: 64, width: 64}
model.feature_extractor.depth_multiplier: 0.1
model.feature_extractor.neck: {max_level: 5, additional_layer_depth: 16}
model.anchor_generator.max_level: 5
model.box_predictor: {depth: 16, num_layers_before_predictor: 1}
train.num_steps: 2
train.batch_size: 2
train.steps_per_call: 1
train.augmentations: []
eval: {batch_size: 4, evaluate_every: 2}
evaluator.num_images: 2
gates.no_floor_reason: The training run has two steps.
gates.baseline: {min_ap_change: -1.0, num_resamples: 100}
gates.latency.num_images: 0
"""
# For run files of `detloom init`: a smaller network from random weights.
SMALL_NETWORK = """
detector: ssd_mobilenet_v2_fpnlite_320x320
train.fine_tune_checkpoint: ""
train.freeze_variables: []
"""

DETLOOM = """#!/bin/bash
# `detloom`, with short training runs.
case $1 in run) set -- "$@" --set {settings} ;; esac
exec {python} -m detloom.pipelines.cli "$@"
"""


@pytest.fixture
def run_in(tmp_path):
    """Return a function that runs the commands of a block in an empty folder and returns their output."""
    programs, folder = tmp_path / "bin", tmp_path / "empty"
    programs.mkdir()
    folder.mkdir()
    detloom = programs / "detloom"
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }

    def run(commands, settings):
        (tmp_path / "settings.yaml").write_text(settings)
        detloom.write_text(DETLOOM.format(settings=tmp_path / "settings.yaml", python=sys.executable))
        detloom.chmod(0o755)
        return subprocess.run(
            ["bash", "-eu", "-c", commands],  # without pipefail: `head` may end before the command has written all
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_commands_run_and_print_what_the_page_shows(page, run_in):
    settings = SHORT if "detector: pipeline.config" in page.read_text(encoding="utf-8") else SHORT + SMALL_NETWORK
    output = ""
    for block in read_blocks(page, "bash", "text"):
        if block.language == "bash":
            result = run_in(block.text, settings)
            output = result.stdout
            print(f"== {block}\n{output}")
            assert result.returncode == 0, f"{block}:\n{output}"
        else:
            assert missing_lines(block.text, output) == [], f"{block}: the output is\n{output}"


def missing_lines(expected, output):
    """Return the lines of `expected` that do not follow the ones before them in `output`."""
    lines = iter(output.splitlines())
    missing = []
    for line in filter(str.strip, expected.splitlines()):
        pattern = re.compile(pattern_of(line))
        if not any(pattern.fullmatch(each.rstrip()) for each in lines):
            missing.append(line)
            lines = iter(())
    return missing


def pattern_of(line):
    """Return a pattern in which digits and the width of columns may differ, and "..." is any text."""
    pattern = re.sub(r"[\d.,]*\d", "\0", re.sub(r"\.\.\.", "\1", line.rstrip()))
    pattern = re.sub(r" {2,}|(\\ ){2,}", "\2", pattern)
    return re.escape(pattern).replace("\0", r"[\d.,]*\d").replace("\1", ".*").replace("\2", " +")


def test_there_are_tutorials():
    assert len(TUTORIALS) >= 5
    assert all(read_blocks(Path(page), "bash") for page in TUTORIALS)
