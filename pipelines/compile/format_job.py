"""A compiled job as the text of its file, the same on every machine."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z][A-Za-z]+[A-Za-z0-9_ ./:-]*[A-Za-z0-9]")


def format_json(document: Mapping[str, Any]) -> str:
    """Sorted, one key a line."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def format_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Sorted, each document after a line of dashes but the first.

    Whatever does not look like a word is quoted: to readers that follow YAML 1.2, as the backend's in Go, a
    fingerprint such as 12345678e0123456 is a number, which PyYAML would not quote.
    """
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=1_000_000, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    """With `_represent_text`, and without anchors, which only shared objects would get."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else "'")


_Dumper.add_representer(str, _represent_text)
