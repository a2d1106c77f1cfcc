"""How variables of a network are called: in patterns, in reports and in our checkpoints.

A path is "part/layer/variable", such as "backbone/Conv1/kernel", "neck/smoothing_3/kernel" or "head/classes/bias": the
layer's name without the "neck_" or "head_" that the layers of those parts start with.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import keras

from detloom.schemas.errors import InputError

PARTS = ("backbone", "neck", "head")
_MAX_NEAR = 3  # names in a message


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


def depends_on_classes(path: str) -> bool:
    """Whether its shape depends on the number of classes: the last layers of the class head, and only they."""
    return path.startswith("head/classes")


def find_matches(
    patterns: Sequence[str], names: Mapping[str, Collection[str]], setting: str, *, only_from_start: bool = False
) -> set[str]:
    """The paths that any of the regular expressions is found in.

    Args:
        names: by path, what it may be called, the path among them.
        setting: key path of the patterns, for the message.
        only_from_start: the expression has to match from the name's beginning on.

    Raises:
        InputError: for a pattern that is found in no name.
    """
    matches: set[str] = set()
    for pattern in patterns:
        compiled = re.compile(pattern)
        find = compiled.match if only_from_start else compiled.search
        found = {path for path, called in names.items() if any(find(name) for name in called)}
        if not found:
            raise InputError(
                f"{setting}: got {pattern!r}, which is found in no variable's name; allowed: a regular expression on "
                f"names such as {', '.join(_near(pattern, names))}{_translation(pattern)}."
            )
        matches |= found
    return matches


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
