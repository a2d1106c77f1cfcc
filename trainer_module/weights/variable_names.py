"""Names of a network's variables in patterns, in reports and in our checkpoints.

A path is "part/layer/variable", such as "backbone/Conv1/kernel", "neck/smoothing_3/kernel" or "head/classes/bias": the
layer's name without the "neck_" or "head_" prefix of those parts.
"""

import difflib
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import keras

from detloom.schemas.errors import InputError

PARTS = ("backbone", "neck", "head")
_MAX_NEAR = 3  # names listed in a message
_LOGGER = logging.getLogger("detloom")


def variables_by_path(network: keras.Model) -> dict[str, keras.Variable]:
    """Return all weights by path, including moving statistics, in the network's order."""
    found: dict[str, keras.Variable] = {}
    for layer in network.layers:
        for variable in layer.weights:
            path = f"{_layer_path(layer.name)}/{variable.name}"
            assert path not in found, path
            found[path] = variable
    return found


def part_of(path: str) -> str:
    return path.partition("/")[0]


def layer_variable(path: str) -> str:
    """Convert a path to "layer/variable" with the layer's own name."""
    part, _, rest = path.partition("/")
    return rest if part == "backbone" else f"{part}_{rest}"


def is_in_last_class_layer(path: str) -> bool:
    """Return True for variables of the layers that compute class logits."""
    return path.startswith("head/classes")


def depends_on_classes(path: str) -> bool:
    """Return True if the shape depends on the number of classes: all of the last class layer but depthwise kernels."""
    return is_in_last_class_layer(path) and not path.endswith("/depthwise_kernel")


def find_matches(
    patterns: Sequence[str],
    paths: Collection[str],
    setting: str,
    *,
    other_names: Sequence[Mapping[str, Collection[str]]] = (),
    kind: str = "variable",
) -> set[str]:
    """Return the paths in which any of the regular expressions is found.

    Args:
        setting: key path of the patterns, for the message.
        other_names: other names of the variables, by path. A pattern that matches no path is looked up in the first of
            these mappings, then in the next: a pattern that matches our own names means only them.
        kind: kind of object that has the paths, for the message.

    Raises:
        InputError: for a pattern that matches no name.
    """
    matches: set[str] = set()
    for pattern in patterns:
        compiled = re.compile(pattern)
        matching = {path for path in paths if compiled.search(path)}
        for names in other_names:
            if not matching:
                matching = {path for path in paths if any(compiled.search(name) for name in names.get(path, ()))}
                _log_other_names(setting, pattern, matching, names)
        if not matching:
            raise InputError(
                f"{setting}: got {pattern!r}, which matches no {kind}; allowed: a regular expression on "
                f"names such as {', '.join(_near(pattern, paths))}."
            )
        matches |= matching
    return matches


def _log_other_names(setting: str, pattern: str, found: set[str], names: Mapping[str, Collection[str]]) -> None:
    """Log which names matched: a short pattern may match longer names than intended."""
    if found:
        first = min(found)
        _LOGGER.info(
            "%s: %r matches no path, but %d other names, such as %s of %s.",
            setting,
            pattern,
            len(found),
            next(name for name in names[first] if re.search(pattern, name)),
            first,
        )


def _layer_path(layer_name: str) -> str:
    for part in ("neck", "head"):
        if layer_name.startswith(f"{part}_"):
            return f"{part}/{layer_name.removeprefix(f'{part}_')}"
    return f"backbone/{layer_name}"


def _near(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the most similar paths; if there are none, the first of each part."""
    plain = re.sub(r"[^\w/]+", "", pattern)
    every = list(paths)
    called: dict[str, str] = {}  # paths by themselves and by layer name
    for path in every:
        called.setdefault(path, path)
        called.setdefault(path.split("/")[1], path)
    near = [called[name] for name in difflib.get_close_matches(plain, called, n=_MAX_NEAR, cutoff=0.5)]
    firsts = {part_of(path): path for path in reversed(every)}
    return list(dict.fromkeys(near)) or list(firsts.values())
