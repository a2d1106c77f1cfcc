"""Settings laid over settings: `--set`, lists of `key=value`, YAML files, and the sections of a run file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.typed_dict import TYPE_KEY, KeyPath, Locate, format_key_path, show_value
from detloom.schemas.yaml_file import parse_yaml, read_yaml

_MAX_STEPS = 32  # names in a key; the longest of the configuration has seven
_STEP = re.compile(r"([^.\[\]]+)((?:\[[0-9]{1,6}\])*)")  # a key, and the indices behind it


@dataclass(frozen=True)
class Located:
    """A tree of plain data, and where each of its keys was written."""

    data: Any
    locate: Locate

    def get(self, path: KeyPath, otherwise: Any = None) -> Any:
        """What stands at a key, or `otherwise` if nothing does."""
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
    """Each layer laid over those before it, key by key.

    A mapping that names another `type` replaces what was there, as lists and single values do. Integer keys of a
    mapping stand for places in a list.

    Raises:
        InputError: if an integer key is beyond the list.
    """
    data, replaced = layers[0].data, [set[KeyPath]() for _ in layers]
    for layer, places in zip(layers[1:], replaced[1:], strict=True):
        data = _merge(data, layer, layer.data, (), places)

    def locate(path: KeyPath) -> str:
        """Where the uppermost layer that decides about a key decides it; of a mapping, where it was begun."""
        above = {path[:length] for length in range(len(path) + 1)}
        for layer, places in reversed(list(zip(layers, replaced, strict=True))):
            if above & places or not isinstance(layer.get(path, {}), Mapping):
                return layer.locate(path)
        return next((layer for layer in layers if layer.holds(path)), layers[0]).locate(path)

    return Located(data, locate)


def parse_set(text: str, option: str = "--set") -> Located:
    """One setting such as `train.batch_size=8` or `train.augmentations[0].probability=1`; the value is YAML.

    Raises:
        InputError: without '=', or with a key or a value that cannot be read.
    """
    key, separator, value = text.partition("=")
    where = f"{option} {redact(key.strip())}"  # without the value, which may be a secret
    if not separator:
        raise InputError(f"{where}: got no '=', allowed: KEY=VALUE, such as train.batch_size=8.")
    path = split_key(key.strip(), where)
    return Located(nest(path, _parse_value(path, value, where)), lambda _: where)


def read_overrides(text: str) -> Located:
    """Overrides as EfficientDet's `--hparams` takes them: `key=value,key=value`, or the path of a YAML file.

    In the file, keys at the top may be dotted. Commas inside brackets and quotes belong to the value.

    Raises:
        InputError: for a file or a list that cannot be read.
    """
    if "=" not in text and text.endswith((".yaml", ".yml")):
        data, locate = read_yaml(Path(text))
        if not isinstance(data, Mapping):
            raise InputError(f"{text}:1: got {show_value((), data)}, allowed: a mapping from keys to values.")
        return _spell_out(data, locate, text)
    parts = [part.strip() for part in _split_commas(text) if part.strip()]
    if not parts:
        raise InputError(f"--hparams '{redact(text)}': got no overrides, allowed: KEY=VALUE,KEY=VALUE or a YAML file.")
    return merge(Located({}, lambda _: "--hparams"), *(parse_set(part, "--hparams") for part in parts))


def _merge(base: Any, layer: Located, over: Any, path: KeyPath, replaced: set[KeyPath]) -> Any:
    """`over`, which the layer says at `path`, laid over `base`; adds the places of which nothing of `base` stays."""
    if isinstance(base, list) and isinstance(over, Mapping) and over and all(isinstance(key, int) for key in over):
        merged = list(base)
        for place, value in over.items():
            if place >= len(base):
                allowed = f"0 to {len(base) - 1}" if base else "none, the list is empty"
                where = layer.locate(path)
                raise InputError(f"{where}: {format_key_path(path)}: got place {place}, allowed: {allowed}.")
            merged[place] = _merge(base[place], layer, value, (*path, place), replaced)
        return merged
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        replaced.add(path)
        return over
    if over.get(TYPE_KEY, base.get(TYPE_KEY)) != base.get(TYPE_KEY):
        replaced.add(path)
        return over
    below = {key: _merge(base.get(key), layer, value, (*path, key), replaced) for key, value in over.items()}
    return {**base, **below}


def split_key(key: str, where: str) -> KeyPath:
    """The steps of a key such as `train.augmentations[0].probability`.

    Raises:
        InputError: beginning with `where`, if it is none.
    """
    path: list[str | int] = []
    for step in key.split("."):
        match = _STEP.fullmatch(step)
        if match is None:
            allowed = "names with dots between, such as train.batch_size"
            raise InputError(f"{where}: got the key '{redact(key)}', allowed: {allowed}.")
        path += [match[1], *(int(index) for index in re.findall(r"[0-9]+", match[2]))]
    if len(path) > _MAX_STEPS:
        raise InputError(f"{where}: got a key of {len(path)} names, allowed: at most {_MAX_STEPS}.")
    return tuple(path)


def nest(path: KeyPath, value: Any) -> Any:
    """Mappings in each other that hold the value at the path."""
    for key in reversed(path):
        value = {key: value}
    return value


def _parse_value(path: KeyPath, text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)[0]
    except InputError:
        allowed = "a number, true, false, null, text, [a, b], {key: value}"
        raise InputError(f"{where}: got the value {show_value(path, text)}, allowed: {allowed}.") from None


def _split_commas(text: str) -> list[str]:
    """Split at commas that are in no bracket and in no quotes; quotes count where a value or an item begins."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and parts[-1].rstrip()[-1:] in ("=", "[", "{", ",", ":"):
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _spell_out(data: Mapping[str, Any], locate: Locate, name: str) -> Located:
    """Dotted keys at the top of an overrides file, nested; each keeps its own line."""
    layers = [Located({}, lambda _: f"{name}:1")]
    for key, value in data.items():
        path, where = split_key(key, locate((key,))), (key,)

        def locate_below(below: KeyPath, path: KeyPath = path, where: KeyPath = where) -> str:
            return locate((*where, *below[len(path) :]))

        layers.append(Located(nest(path, value), locate_below))
    return merge(*layers)
