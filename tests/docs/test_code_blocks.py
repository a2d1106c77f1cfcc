"""Code in README.md and docs/ agrees with detloom: commands, run files, imports, links."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import click
import pytest
import yaml
from fenced_blocks import PAGES, ROOT, SHELLS, detloom_commands, parse_command, read_blocks

from detloom.pipelines.check_config import check_config

OPTIONAL = "onnxruntime"  # of `pip install 'detloom[onnx]'`
MINIMUM = {"name": "cells", "data": {"path": "embedded:digits", "split_by_ratio": {}}}


def blocks(*languages):
    found = [block for page in PAGES for block in read_blocks(page, *languages)]
    return pytest.mark.parametrize("block", found, ids=str)


def with_commands():
    found = [block for page in PAGES for block in read_blocks(page, *SHELLS) if detloom_commands(block)]
    return pytest.mark.parametrize("block", found, ids=str)


@with_commands()
def test_commands_and_their_options_exist(block, monkeypatch):
    for arguments in detloom_commands(block):
        try:
            parse_command(arguments, monkeypatch)
        except click.UsageError as error:
            if isinstance(error, click.MissingParameter) and "..." in arguments:
                continue  # the page leaves arguments out
            pytest.fail(f"{block}: detloom {' '.join(arguments)}: {error.format_message()}")


@blocks("yaml")
def test_run_files_and_fragments_of_them_pass_the_check(block, tmp_path, monkeypatch):
    monkeypatch.setenv("CELLS_DIR", str(tmp_path))
    for tree in yaml.safe_load_all(block.text):
        if not is_of_kubernetes(tree):
            check = check_run_file(tree, tmp_path)
            assert check.verdict == "loads", f"{block}: {check.error}"


def is_of_kubernetes(tree):
    return "apiVersion" in tree or set(tree) == {"env"}


def check_run_file(tree, folder):
    """Check a run file; a fragment is completed with a name and data."""
    whole = {**MINIMUM, **tree}
    if "data" in tree and "path" not in tree["data"]:
        whole["data"] = {**MINIMUM["data"], **tree["data"]}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(whole))
    return check_config(str(path))


@blocks("json")
def test_json_can_be_read(block):
    json.loads(block.text)


@blocks("python")
def test_python_compiles_and_its_imports_exist(block):
    for node in ast.walk(ast.parse(block.text, str(block))):
        if isinstance(node, ast.Import):
            assert all(alias.name == OPTIONAL or has_module(alias.name) for alias in node.names), (
                f"{block}: line {node.lineno}"
            )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert has_name(node.module, alias.name), f"{block}: {node.module} has no {alias.name}"


def has_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def has_name(module, name):
    """Tell whether a module of detloom defines or imports a name, or has a submodule of this name; other modules must
    exist."""
    if not module.startswith("detloom") or not has_module(module):
        return has_module(module)
    spec = importlib.util.find_spec(module)
    if spec.submodule_search_locations and has_module(f"{module}.{name}"):
        return True
    stub = Path(spec.origin).with_suffix(".pyi")
    source = stub if stub.exists() else Path(spec.origin)
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return name in set(top_level_names(tree))


def top_level_names(tree):
    for node in tree.body:
        if isinstance(node, ast.If):  # imports for type checkers
            yield from top_level_names(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


# `make docs-site` checks the links between the pages of docs/.
@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_links_into_the_checkout_exist(page):
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not is_target(link, ROOT / page)]
    assert broken == []


def is_target(link, page):
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))


def anchors(text):
    """Return GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
