"""How variables of a network are called: in patterns, in reports and in our checkpoints.

A path is "part/layer/variable", such as "backbone/Conv1/kernel", "neck/smoothing_3/kernel" or "head/classes/bias": the
layer's name without the "neck_" or "head_" that the layers of those parts start with.
"""

import difflib
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import keras

from detloom.schemas.errors import InputError

PARTS = ("backbone", "neck", "head")
_MAX_NEAR = 3  # names in a message
_LOGGER = logging.getLogger("detloom")


def variables_by_path(network: keras.Model) -> dict[str, keras.Variable]:
    """All weights, moving statistics too, in the network's order."""
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
    """The same as "layer/variable", by the layer's own name."""
    part, _, rest = path.partition("/")
    return rest if part == "backbone" else f"{part}_{rest}"


def is_in_last_class_layer(path: str) -> bool:
    """Whether it is of the layers that give the class logits."""
    return path.startswith("head/classes")


def depends_on_classes(path: str) -> bool:
    """Whether its own shape depends on the number of classes: in the last class layer all but a depthwise kernel."""
    return is_in_last_class_layer(path) and not path.endswith("/depthwise_kernel")


def find_matches(
    patterns: Sequence[str],
    paths: Collection[str],
    setting: str,
    *,
    other_names: Sequence[Mapping[str, Collection[str]]] = (),
    kind: str = "variable",
    only_from_start: bool = False,
) -> set[str]:
    """The paths that any of the regular expressions is found in.

    Args:
        setting: key path of the patterns, for the message.
        other_names: by path, what else the variable is called. A pattern that is found in no path is looked for in the
            first of these mappings, then in the next: what fits our own names means them alone.
        kind: what has the paths, for the message.
        only_from_start: the expression has to match from the name's beginning on.

    Raises:
        InputError: for a pattern that is found in no name.
    """
    matches: set[str] = set()
    for pattern in patterns:
        compiled = re.compile(pattern)
        find = compiled.match if only_from_start else compiled.search
        found = {path for path in paths if find(path)}
        for names in other_names:
            if not found:
                found = {path for path in paths if any(find(name) for name in names.get(path, ()))}
                _log_other_names(setting, pattern, found, names)
        if not found:
            raise InputError(
                f"{setting}: got {pattern!r}, which is found in no {kind}'s name; allowed: a regular expression on "
                f"names such as {', '.join(_near(pattern, paths))}{_translation(pattern)}."
            )
        matches |= found
    return matches


def _log_other_names(setting: str, pattern: str, found: set[str], names: Mapping[str, Collection[str]]) -> None:
    """A short pattern may be found in longer names than it was meant for."""
    if found:
        first = min(found)
        _LOGGER.info(
            "%s: %r is found in no path, but in %d other names, such as %s of %s.",
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
    """The paths most like it; without any, the first of each part."""
    plain = re.sub(r"[^\w/]+", "", pattern)
    every = list(paths)
    called: dict[str, str] = {}  # whole paths, and the names of layers for the first of their paths
    for path in every:
        called.setdefault(path, path)
        called.setdefault(path.split("/")[1], path)
    near = [called[name] for name in difflib.get_close_matches(plain, called, n=_MAX_NEAR, cutoff=0.5)]
    firsts = {part_of(path): path for path in reversed(every)}
    return list(dict.fromkeys(near)) or list(firsts.values())


def _translation(pattern: str) -> str:
    """What the Object Detection API's name scopes are here."""
    lower = pattern.lower()
    if "featureextractor" in lower:
        return "; FeatureExtractor is ^(backbone|neck)/ here"
    if "boxpredictor" in lower or "predictor" in lower:
        return "; BoxPredictor is ^head/ here"
    return ""
