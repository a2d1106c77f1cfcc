"""The folders in which tasks write are created on the pages on Kubeflow, because the volumes belong to root."""

import re
from pathlib import PurePosixPath

import pytest
import yaml
from fenced_blocks import ROOT


@pytest.mark.parametrize("page", ["docs/kubeflow.md", "docs/tutorials/kubeflow.md"])
def test_every_folder_that_the_run_file_writes_to_is_created(page):
    text = (ROOT / page).read_text()
    run = yaml.safe_load(re.search(r"^name: .*?(?=^```|^END)", text, re.MULTILINE | re.DOTALL)[0])
    created = re.search(r"mkdir,? -p,? (.*?)[\n\]]", text)[1].replace(",", "").split()
    for folder in (run["push_to"], run["kubeflow"]["training_dir"]):
        assert any(PurePosixPath(folder).is_relative_to(each) for each in created), folder
