"""Resolve the data folders and fingerprint them; extends TFX's file-based driver with errors that name the path.

An `input_base` may contain `{SPAN}`, `{VERSION}` or `{YYYY}`/`{MM}`/`{DD}` (with a width, as in `{SPAN:3}`). TFX
resolves them only in patterns of files, so the base is cut before the first placeholder and the pattern contains the
rest.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from tfx.components.example_gen import driver as tfx_driver
from tfx.components.example_gen import utils
from tfx.dsl.components.base.base_driver import BaseDriver
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import standard_component_specs
from tfx.utils import proto_utils

from detloom.components.artifact_types import Artifacts
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.errors import InputError

DATA_FOLDERS_KEY = "data_folders"  # JSON list of the folders to read, relative to the input base, oldest span first
# the data folder's own entries: TFX needs a file to watch, while our fingerprint covers the whole folder
ANY_FILE = "/*"
_PLACEHOLDER = re.compile(r"\{(?:SPAN|VERSION)(?::\d+)?\}|\{YYYY\}|\{MM\}|\{DD\}")
_WILD = ("*", "?", "[", "]", "\\")  # special characters of patterns


class Driver(tfx_driver.FileBasedDriver):
    """A driver that resolves the data folder, or the folders of the latest spans, and checks that they exist.

    TFX's own fingerprint covers only the entries of the latest folder; this driver adds all files of all folders.
    """

    def resolve_exec_properties(
        self, exec_properties: dict[str, Any], pipeline_info: Any, component_info: Any
    ) -> dict[str, Any]:
        params = ExampleGenParams.from_properties(exec_properties)
        base = exec_properties[standard_component_specs.INPUT_BASE_KEY]
        pattern = read_pattern(exec_properties)
        if not DataFolder(base).is_folder(""):
            raise InputError(f"{base}: the data folder does not exist; create it, or correct the path of the data.")
        try:
            # A copy: TFX writes into what it gets, and InteractiveContext gives the component's own properties.
            resolved = super().resolve_exec_properties(dict(exec_properties), pipeline_info, component_info)
        except ValueError as error:
            odd = find_odd_entries(base, pattern)
            hint = f"; not numbered: {', '.join(odd)}; move these elsewhere" if odd else ""
            raise InputError(f"{base}: no span of the data can be selected ({error}){hint}.") from None
        folders = [subfolder_of(read_pattern(resolved))]
        if params.num_spans > 1:
            span = resolved[utils.SPAN_PROPERTY_NAME]
            folders = find_earlier_spans(base, pattern, span, params.num_spans - 1) + folders
        resolved[DATA_FOLDERS_KEY] = json.dumps(folders)
        resolved[utils.FINGERPRINT_PROPERTY_NAME] += "\n" + fingerprint_folders(base, folders)
        return resolved

    def _prepare_output_artifacts(self, *, exec_properties: dict[str, Any], **others: Any) -> Artifacts:
        """Create all outputs of the component; TFX's driver creates only the examples.

        Only InteractiveContext calls it.
        """
        outputs: Artifacts = BaseDriver._prepare_output_artifacts(self, exec_properties=exec_properties, **others)
        (examples,) = outputs[standard_component_specs.EXAMPLES_KEY]
        tfx_driver.update_output_artifact(exec_properties, examples.mlmd_artifact)
        return outputs


def read_pattern(exec_properties: dict[str, Any]) -> str:
    """Return the file pattern in the input config."""
    config = example_gen_pb2.Input()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.INPUT_CONFIG_KEY], config)
    return config.splits[0].pattern


def split_input_base(input_base: str) -> tuple[str, str]:
    """Return the literal folder before the first placeholder, and the rest ("" without a placeholder).

    Raises:
        InputError: if the rest cannot be part of a pattern.
    """
    parts = input_base.rstrip("/").split("/")
    for index, part in enumerate(parts):
        if _PLACEHOLDER.search(part):
            rest = "/".join(parts[index:])
            if any(char in input_base for char in _WILD):
                raise InputError(f"{input_base}: a path with placeholders may not contain {' '.join(_WILD)}.")
            return "/".join(parts[:index]) or "/", rest
    return "/".join(parts) or "/", ""


def file_pattern(rest: str) -> str:
    """Return the pattern of the files that TFX watches, relative to the literal folder."""
    return f"{rest}{ANY_FILE}" if rest else ANY_FILE.removeprefix("/")


def subfolder_of(resolved_pattern: str) -> str:
    """Return the data folder relative to the literal folder, from a pattern with resolved placeholders."""
    return resolved_pattern.removesuffix(ANY_FILE.removeprefix("/")).rstrip("/")


def find_earlier_spans(base: str, pattern: str, before: int, num_spans: int) -> list[str]:
    """Return the data folders of the newest `num_spans` spans below span `before`, oldest first, latest version of
    each.

    Args:
        pattern: with its placeholders.
    """
    numbers = sorted({span for span in _list_spans(base, pattern) if span < before}, reverse=True)
    folders = []
    for span in numbers[:num_spans]:
        split = example_gen_pb2.Input.Split(name="data", pattern=pattern)
        one_span = range_config_pb2.RangeConfig(
            static_range=range_config_pb2.StaticRange(start_span_number=span, end_span_number=span)
        )
        utils.calculate_splits_fingerprint_span_and_version(base, [split], one_span)  # resolves the split's pattern
        folders.append(subfolder_of(split.pattern))
    return folders[::-1]


def find_odd_entries(base: str, pattern: str) -> list[str]:
    """Return up to five entries at the place of a span or version that are not numbered, relative to the literal
    folder.
    """
    wanted = _expression(base, pattern)
    odd = (path for path in fileio.glob(f"{base}/{_PLACEHOLDER.sub('*', pattern)}") if not wanted.fullmatch(path))
    folders = sorted({subfolder_of(path[len(base) + 1 :].rpartition("/")[0] + ANY_FILE) for path in odd})
    return folders[:5]


def _list_spans(base: str, pattern: str) -> list[int]:
    wanted = _expression(base, pattern)
    spans = []
    for path in fileio.glob(f"{base}/{_PLACEHOLDER.sub('*', pattern)}"):
        match = wanted.fullmatch(path)
        if match is None:
            continue
        found_here = match.groupdict()
        if "SPAN" in found_here:
            spans.append(int(found_here["SPAN"]))
        else:
            spans.append(utils.date_to_span_number(*(int(found_here[part]) for part in ("YYYY", "MM", "DD"))))
    return spans


def _expression(base: str, pattern: str) -> re.Pattern[str]:
    """Return the expression of a path whose placeholders are replaced by numbers."""
    expression = re.escape(f"{base}/{pattern}").replace(r"\*", "[^/]+")
    for name, found in (
        ("SPAN", r"\\\{SPAN(?::(\d+))?\\\}"),
        ("VERSION", r"\\\{VERSION(?::(\d+))?\\\}"),
        ("YYYY", r"\\\{YYYY\\\}"),
        ("MM", r"\\\{MM\\\}"),
        ("DD", r"\\\{DD\\\}"),
    ):
        expression = re.sub(found, rf"(?P<{name}>[0-9]+)", expression)
    return re.compile(expression)


def fingerprint_folders(base: str, subfolders: Sequence[str]) -> str:
    """Return a digest of names, sizes and times of all files of the data folders, links followed; contents are not
    read.
    """
    digest = hashlib.sha256()
    num_files = 0
    for subfolder in subfolders:
        for file in DataFolder(f"{base}/{subfolder}" if subfolder else base).walk():
            digest.update(f"{subfolder}/{file.path}\0{file.size}\0{file.mtime_ns}\n".encode(errors="surrogateescape"))
            num_files += 1
    return f"files:{num_files},sha256:{digest.hexdigest()}"
