"""Merge layers of settings: `--set`, YAML files of settings, and the sections of a run file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.typed_dict import TYPE_KEY, KeyPath, Locate, place_of, show_value
from detloom.schemas.reading.yaml_file import parse_yaml, read_yaml

_MAX_STEPS = 32  # names in a key; the longest key of the configuration has 7
_STEP = re.compile(r"([^.\[\]]+)((?:\[[0-9]{1,6}\])*)")  # a key followed by indices


@dataclass(frozen=True)
class Located:
    """A tree of plain data, with a function that returns where each key was written."""

    data: Any
    locate: Locate

    def get(self, path: KeyPath, otherwise: Any = None) -> Any:
        """Return the value at a key, or `otherwise` if the key is missing."""
        data = self.data
        for key in path:
            is_place = isinstance(data, list) and isinstance(key, int) and key < len(data)
            if not is_place and not (isinstance(data, Mapping) and key in data):
                return otherwise
            data = data[key]
        return data

    def holds(self, path: KeyPath) -> bool:
        nothing = object()
        return self.get(path, nothing) is not nothing


def merge(*layers: Located) -> Located:
    """Merge layers key by key; later layers override earlier ones.

    Lists and single values replace the earlier value, and so does a mapping with another `type`. Integer keys of a
    mapping are indices of a list.

    Raises:
        InputError: if an integer key is out of range.
    """
    data, replaced = layers[0].data, [set[KeyPath]() for _ in layers]
    for layer, places in zip(layers[1:], replaced[1:], strict=True):
        data = _merge(data, layer, layer.data, (), places)

    def locate(path: KeyPath) -> str:
        """Return where the topmost layer that sets a key writes it; for a mapping, where the mapping starts."""
        above = {path[:length] for length in range(len(path) + 1)}
        for layer, places in reversed(list(zip(layers, replaced, strict=True))):
            if above & places or not isinstance(layer.get(path, {}), Mapping):
                return layer.locate(path)
        return next((layer for layer in layers if layer.holds(path)), layers[0]).locate(path)

    return Located(data, locate)


def read_setting(text: str) -> Located:
    """Read a value of `--set`: one setting, or the path of a YAML file of settings, whose top-level keys may be dotted.

    Raises:
        InputError: if the setting or the file is invalid.
    """
    is_file = "=" not in text and text.endswith((".yaml", ".yml"))
    if not is_file:
        return parse_set(text)
    data, locate = read_yaml(Path(text))
    if not isinstance(data, Mapping):
        raise InputError(f"{text}:1: got {show_value((), data)}, allowed: a mapping from keys to values.")
    return _nest_dotted_keys(data, locate, text)


def parse_set(text: str) -> Located:
    """Parse one setting such as `train.batch_size=8` or `train.augmentations[0].probability=1`; the value is YAML.

    Raises:
        InputError: if there is no '=', or the key or the value is invalid.
    """
    key, separator, value = text.partition("=")
    where = f"--set {redact(key.strip())}"  # without the value, which may be a secret
    if not separator:
        raise InputError(f"{where}: got no '=', allowed: KEY=VALUE, such as train.batch_size=8, or a YAML file.")
    path = split_key(key.strip(), where)
    return Located(nest(path, _parse_value(path, value, where)), lambda _: where)


def _merge(base: Any, layer: Located, over: Any, path: KeyPath, replaced: set[KeyPath]) -> Any:
    """Merge `over`, the layer's value at `path`, into `base`; add the paths that `over` replaces to `replaced`."""
    has_indices = isinstance(over, Mapping) and bool(over) and all(isinstance(key, int) for key in over)
    if isinstance(base, list) and has_indices:
        merged = list(base)
        for place, value in over.items():
            if place >= len(base):
                allowed = f"0 to {len(base) - 1}" if base else "none, the list is empty"
                where = place_of(layer.locate, path)
                raise InputError(f"{where}: got index {place}, allowed: {allowed}.")
            merged[place] = _merge(base[place], layer, value, (*path, place), replaced)
        return merged
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        replaced.add(path)
        return over
    if over.get(TYPE_KEY, base.get(TYPE_KEY)) != base.get(TYPE_KEY):
        replaced.add(path)
        return over
    result = dict(base)
    for key, value in over.items():
        result[key] = _merge(base.get(key), layer, value, (*path, key), replaced)
    return result


def split_key(key: str, where: str) -> KeyPath:
    """Split a key such as `train.augmentations[0].probability` into its steps.

    Raises:
        InputError: starting with `where`, if the key is invalid.
    """
    path: list[str | int] = []
    for step in key.split("."):
        match = _STEP.fullmatch(step)
        if match is None:
            allowed = "names separated by dots, such as train.batch_size"
            raise InputError(f"{where}: got the key '{redact(key)}', allowed: {allowed}.")
        path += [match[1], *(int(index) for index in re.findall(r"[0-9]+", match[2]))]
    if len(path) > _MAX_STEPS:
        raise InputError(f"{where}: got a key of {len(path)} names, allowed: at most {_MAX_STEPS}.")
    return tuple(path)


def nest(path: KeyPath, value: Any) -> Any:
    """Return nested mappings with the value at the path."""
    for key in reversed(path):
        value = {key: value}
    return value


def _parse_value(path: KeyPath, text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)[0]
    except InputError:
        allowed = "a number without leading zeros, true, false, null, text, [a, b], {key: value}"
        raise InputError(f"{where}: got the value {show_value(path, text)}, allowed: {allowed}.") from None


def _nest_dotted_keys(data: Mapping[str, Any], locate: Locate, name: str) -> Located:
    """Turn the dotted top-level keys of a file of settings into nested mappings; each key keeps its line."""
    layers = [Located({}, lambda _: f"{name}:1")]
    for key, value in data.items():
        path, where = split_key(key, locate((key,))), (key,)

        def locate_below(below: KeyPath, path: KeyPath = path, where: KeyPath = where) -> str:
            return locate((*where, *below[len(path) :]))

        layers.append(Located(nest(path, value), locate_below))
    return merge(*layers)
