"""Settings laid over settings: `--set`, lists of `key=value`, YAML files, and the sections of a run file."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.typed_dict import TYPE_KEY, KeyPath, Locate, format_key_path
from detloom.schemas.yaml_file import parse_yaml, read_yaml

_STEP = re.compile(r"([^.\[\]]+)((?:\[\d+\])*)")  # a key, and the indices behind it


@dataclass(frozen=True)
class Located:
    """A tree of plain data, and where each of its keys was written."""

    data: Any
    locate: Locate

    def holds(self, path: KeyPath) -> bool:
        data = self.data
        for key in path:
            is_place = isinstance(data, list) and isinstance(key, int) and key < len(data)
            if not is_place and not (isinstance(data, Mapping) and key in data):
                return False
            data = data[key]
        return True


def merge(base: Located, over: Located) -> Located:
    """`over` laid over `base`, key by key.

    A mapping that names another `type` replaces what was there, as lists and single values do. Integer keys of a
    mapping stand for places in a list.

    Raises:
        InputError: if an integer key is beyond the list.
    """

    def locate(path: KeyPath) -> str:
        return over.locate(path) if over.holds(path) else base.locate(path)

    return Located(_merge(base.data, over.data, over.locate, ()), locate)


def merge_all(layers: Iterable[Located]) -> Located:
    """The first layer with all others laid over it in order."""
    first, *rest = layers
    for layer in rest:
        first = merge(first, layer)
    return first


def parse_set(text: str) -> Located:
    """One setting such as `train.batch_size=8` or `train.augmentations[0].probability=1`; the value is YAML.

    Raises:
        InputError: without '=', or with a key or a value that cannot be read.
    """
    key, separator, value = text.partition("=")
    where = f"--set {text}"
    if not separator:
        raise InputError(f"{where}: got no '=', allowed: KEY=VALUE, such as train.batch_size=8.")
    return Located(_nest(_split_key(key.strip(), where), _parse_value(value, where)), lambda _: where)


def read_overrides(text: str) -> Located:
    """Overrides as EfficientDet's `--hparams` takes them: `key=value,key=value`, or the path of a YAML file.

    In the file, keys may be nested, dotted, or both. Commas inside brackets and quotes belong to the value.

    Raises:
        InputError: for a file or a list that cannot be read.
    """
    if text.endswith((".yaml", ".yml")):
        data, locate = read_yaml(Path(text))
        if not isinstance(data, Mapping):
            raise InputError(f"{text}:1: got {data!r}, allowed: a mapping from keys to values.")
        return _spell_out(data, locate, text)
    parts = [part for part in _split_commas(text) if part.strip()]
    if not parts:
        raise InputError(f"{text!r}: got no overrides, allowed: KEY=VALUE,KEY=VALUE or a YAML file.")
    return merge_all(parse_set(part.strip()) for part in parts)


def _merge(base: Any, over: Any, locate: Locate, path: KeyPath) -> Any:
    if not isinstance(over, Mapping):
        return over
    if isinstance(base, list) and over and all(isinstance(key, int) for key in over):
        merged = list(base)
        for place, value in over.items():
            if place >= len(base):
                name = format_key_path(path)
                raise InputError(f"{locate(path)}: {name}: got place {place}, allowed: 0 to {len(base) - 1}.")
            merged[place] = _merge(base[place], value, locate, (*path, place))
        return merged
    if not isinstance(base, Mapping) or over.get(TYPE_KEY, base.get(TYPE_KEY)) != base.get(TYPE_KEY):
        return over
    return {**base, **{key: _merge(base.get(key), value, locate, (*path, key)) for key, value in over.items()}}


def _split_key(key: str, where: str) -> KeyPath:
    path: list[str | int] = []
    for step in key.split("."):
        match = _STEP.fullmatch(step)
        if match is None:
            raise InputError(
                f"{where}: got the key {key!r}, allowed: names with dots between, such as train.batch_size."
            )
        path += [match[1], *(int(index) for index in re.findall(r"\d+", match[2]))]
    return tuple(path)


def _nest(path: KeyPath, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _parse_value(text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)[0]
    except InputError:
        raise InputError(
            f"{where}: got the value {text!r}, allowed: a number, true, false, null, text, [a, b]."
        ) from None


def _split_commas(text: str) -> list[str]:
    """Split at commas that are in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
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
    layers = []
    for key, value in data.items():
        path, where = _split_key(key, locate((key,))), (key,)

        def locate_below(below: KeyPath, path: KeyPath = path, where: KeyPath = where) -> str:
            return locate((*where, *below[len(path) :]))

        layers.append(Located(_nest(path, value), locate_below))
    return merge_all([Located({}, lambda _: f"{name}:1"), *layers])
