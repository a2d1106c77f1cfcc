"""The label map: class ids on disk (1-based) and their names, in the Object Detection API's text format."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detloom.schemas.errors import InputError

LABEL_MAP_FILE = "label_map.pbtxt"  # its name inside an examples artifact
_QUOTED = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_ITEM = re.compile(rf"item\s*:?\s*\{{((?:[^{{}}\"']|{_QUOTED})*)\}}")
_FIELD = re.compile(r"""(\w+)\s*:\s*(?:(-?\d+)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')\s*[,;]?""")
_COMMENT = re.compile(rf"({_QUOTED})|#[^\n]*")


@dataclass(frozen=True)
class LabelMap:
    """Class names by label-map id.

    `class_id` is the id on disk (any positive integer, gaps allowed, as in COCO); `class_index` is the 0-based position
    among the ids in ascending order, which is the model's channel. This class is the only place that converts.
    """

    names_by_id: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        ids = [class_id for class_id, _ in self.names_by_id]
        names = [name for _, name in self.names_by_id]
        if not ids:
            raise InputError("label map: no classes; give at least one.")
        if min(ids) < 1:
            raise InputError(f"label map: got id {min(ids)}, allowed: 1 and up (0 is background).")
        for kind, values in (("id", list(map(str, ids))), ("name", names)):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise InputError(f"label map: {kind} {twice[0]!r} stands twice.")
        object.__setattr__(self, "names_by_id", tuple(sorted(self.names_by_id)))

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "LabelMap":
        """Ids 1, 2, ... in the order given."""
        return cls(tuple(enumerate(names, start=1)))

    @property
    def num_classes(self) -> int:
        return len(self.names_by_id)

    @property
    def class_ids(self) -> tuple[int, ...]:
        """Label-map id of each class index."""
        return tuple(class_id for class_id, _ in self.names_by_id)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each class index."""
        return tuple(name for _, name in self.names_by_id)

    def name_of(self, class_id: int) -> str:
        """The name, or "#<id>" for an id that the map lacks."""
        return dict(self.names_by_id).get(class_id, f"#{class_id}")


def format_label_map(label_map: LabelMap) -> str:
    def quote(name: str) -> str:
        return name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")

    return "".join(f"item {{\n  id: {i}\n  name: '{quote(name)}'\n}}\n" for i, name in label_map.names_by_id)


def parse_label_map(text: str, where: str = "label map") -> LabelMap:
    """Parse `item { id: 1 name: 'person' display_name: ... }` blocks; `display_name` wins, as in the reference.

    Raises:
        InputError: naming `where`, for anything that is not such a list.
    """
    text = _COMMENT.sub(lambda match: match.group(1) or "", text)
    rest = _ITEM.sub("", text).strip()
    if rest:
        raise InputError(f"{where}: got {rest[:60]!r}, allowed: a list of 'item {{ id: 1 name: \"...\" }}'.")
    pairs = []
    for body in _ITEM.findall(text):
        fields = {key: number or double or single for key, number, double, single in _FIELD.findall(body)}
        name = fields.get("display_name") or fields.get("name")
        if not name or not fields.get("id", "").isdigit():
            raise InputError(f"{where}: item {body.strip()[:60]!r} needs a positive id and a name.")
        pairs.append((int(fields["id"]), re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m.group(1), m.group(1)), name)))
    try:
        return LabelMap(tuple(pairs))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def read_label_map(path: Path) -> LabelMap:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the label map cannot be read ({error}).") from None
    return parse_label_map(text, where=str(path))


def write_label_map(path: Path, label_map: LabelMap) -> None:
    Path(path).write_text(format_label_map(label_map), encoding="utf-8")
