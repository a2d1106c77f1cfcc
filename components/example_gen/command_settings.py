"""Describe the settings of an ingestion to `detloom ingest` and to the component for Kubeflow Pipelines."""

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.reading.typed_dict import type_hints
from detloom.schemas.run_file.json_schema import field_docs

_ONLY_IN_PIPELINES = ("code_fingerprint", "max_distance", "num_spans")


class Setting(NamedTuple):
    """A field of `ExampleGenParams`; `default` is None for a mapping that is empty by default."""

    name: str
    annotation: Any
    default: Any
    doc: str


def command_settings() -> dict[str, Setting]:
    """Return the settings by name."""
    hints, docs = type_hints(ExampleGenParams), field_docs(ExampleGenParams)
    names = [item.name for item in fields(ExampleGenParams) if item.name not in _ONLY_IN_PIPELINES]
    defaults = {item.name: item.default for item in fields(ExampleGenParams)}
    return {
        name: Setting(name, hints[name], None if defaults[name] is MISSING else defaults[name], docs[name])
        for name in names
    }
