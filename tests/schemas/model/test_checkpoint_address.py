"""Addresses of archives: which are accepted, and where a wrong one is reported."""

import re

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.checkpoint_address import ArchiveAddress, is_web_address, parse_archive_address
from detloom.schemas.reading.overrides import read_setting
from detloom.schemas.run_file.read_run_file import build_run, check_checkpoint, load_run_tree

URL = "https://host/models/ssd_640.tar.gz"
HASH = "0123456789abcdef" * 4


def test_an_address_with_and_without_a_hash():
    assert parse_archive_address(f" {URL} ") == ArchiveAddress(URL)
    assert parse_archive_address(f"{URL}#sha256={HASH.upper()}") == ArchiveAddress(URL, HASH)
    assert parse_archive_address(f"http://host:8080/a.tgz#sha256={HASH}").file_name == "a.tgz"
    assert str(ArchiveAddress(URL, HASH)) == f"{URL}#sha256={HASH}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://host/a.tar.gz", "allowed: https://host/a.tar.gz, or http with #sha256="),
        (f"{URL}#sha256=12", "allowed: #sha256= and 64 hexadecimal digits"),
        (f"{URL}#md5={HASH}", "allowed: #sha256= and 64 hexadecimal digits"),
        ("https://user:pass@host/a.tar.gz", "with a user or parameters"),
        (f"{URL}?token=hunter2", "with a user or parameters"),
        ("https://host/ckpt-0", "allowed: the address of an archive (.tar.gz, .tgz, .tar)"),
        ("https://host/a.zip", "allowed: the address of an archive"),
        ("https:///a.tar.gz", "allowed: https://HOST/PATH/NAME.tar.gz"),
        ("https://host:port/a.tar.gz", "not a valid address"),
        ("https://[host/a.tar.gz", "not a valid address"),
        ("https://host/a b.tar.gz", "allowed: https://HOST/PATH/NAME.tar.gz"),
        ("https://host/a\n.tar.gz", "allowed: https://HOST/PATH/NAME.tar.gz"),
    ],
)
def test_other_addresses_are_refused(text, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_archive_address(text)
    assert "pass" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_only_web_addresses_are_parsed():
    assert [is_web_address(each) for each in (" HTTPS://a", "http://a", "gs://a", "imagenet", "/https://")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_wrong_address_is_reported_with_its_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: a\ndata: {path: embedded:digits, split_by_ratio: {}}\ntrain:\n  fine_tune_checkpoint: https://host/ckpt-0\n"
    )
    tree, _ = load_run_tree(path)
    with pytest.raises(InputError, match=r"run\.yaml:4: train\.fine_tune_checkpoint: got 'https://host/ckpt-0'"):
        build_run(tree)
    tree, _ = load_run_tree(path, [read_setting(f"train.fine_tune_checkpoint={URL}#sha256={HASH}")])
    run = build_run(tree)
    assert run.train.fine_tune_checkpoint == f"{URL}#sha256={HASH}"
    check_checkpoint(run.train.fine_tune_checkpoint, tree, "Kubeflow")  # the Trainer downloads it
