"""The label map: class ids (1-based) and class names, stored in the Object Detection API's text format."""

import functools
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.reading.proto_text import Message, Scalar, parse_text
from detloom.schemas.reading.redact import escape, redact

LABEL_MAP_FILE = "label_map.pbtxt"  # file name inside an Examples artifact
# Escapes of Unicode characters, after an even number of backslashes; protobuf's tokenizer does not decode them.
_UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_TO_ESCAPE = re.compile(r"""[\x00-\x1f\x7f'\\]""")  # \r included: reading a text file would turn it into \n
_MAX_ID_DIGITS = 18  # below 2**63
_MAX_VALUES = 300_000  # items and their fields


_MAX_ID = 2**24  # detections contain ids as float32, which is exact up to here


@dataclass(frozen=True)
class LabelMap:
    """Class names by label-map id.

    `class_id` is the id on disk (1 to 2^24, gaps allowed, as in COCO). `class_index` is the 0-based position
    among the sorted ids, which is the model's channel. Only this class converts between the two.

    Attributes:
        codes: code and id of the classes that have a display name, which is their name here, and a code.
    """

    names_by_id: tuple[tuple[int, str], ...]
    codes: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        ids = [class_id for class_id, _ in self.names_by_id]
        names = [name for _, name in self.names_by_id]
        if not ids:
            raise InputError("label map: no classes; add at least one.")
        if min(ids) < 1:
            raise InputError(f"label map: got id {min(ids)}, allowed: 1 and up (0 is background).")
        if max(ids) > _MAX_ID:
            raise InputError(
                f"label map: got id {max(ids)}, allowed: up to {_MAX_ID}, because detections contain ids as float32; "
                "number the classes anew."
            )
        for kind, values in (("id", list(map(str, ids))), ("name", names)):
            twice = sorted(value for value, count in Counter(values).items() if count > 1)
            if twice:
                raise InputError(f"label map: {kind} {twice[0]!r} appears twice.")
        object.__setattr__(self, "names_by_id", tuple(sorted(self.names_by_id)))

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "LabelMap":
        """Give the names the ids 1, 2, ... in order."""
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
        """Return the class name, or "#<id>" for an id that is not in the map."""
        return self._names.get(class_id, f"#{class_id}")

    @functools.cached_property
    def _names(self) -> dict[int, str]:
        return dict(self.names_by_id)


@dataclass(frozen=True, slots=True)
class LabelMapItem:
    """One item of a label map file. If `display_name` is set, it is the class name and `name` is a code."""

    class_id: int
    name: str
    display_name: str

    @property
    def class_name(self) -> str:
        return self.display_name or self.name


def describe_difference(before: LabelMap, now: LabelMap) -> str | None:
    """Return the first class that differs, such as "id 2: dog before, cat now, and 1 more"; None without any."""
    old, new = dict(before.names_by_id), dict(now.names_by_id)
    class_ids = sorted(old.keys() | new.keys())
    different = [class_id for class_id in class_ids if old.get(class_id) != new.get(class_id)]
    if not different:
        return None
    first = different[0]
    was, became = (escape(names[first]) if first in names else "none" for names in (old, new))
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    return f"id {first}: {was} before, {became} now{more}"


def keeps_ids(before: LabelMap, now: LabelMap) -> bool:
    """Return True if every class of `before` is in `now` with the same id."""
    return set(before.names_by_id) <= set(now.names_by_id)


def shared_classes(label_map: LabelMap, other: LabelMap) -> LabelMap | None:
    """Return the classes of a label map whose names are in the other one, too; None if there are none."""
    shared = tuple(item for item in label_map.names_by_id if item[1] in other.names)
    return LabelMap(shared) if shared else None


def label_map_of_examples(path: str, content: bytes | None, given: str) -> LabelMap:
    """Return the label map of examples.

    Args:
        path: the label map in the root of the examples artifact, for messages.
        content: its content; None if there is none.
        given: content of a label map for examples that have none; empty reads that of the examples.

    Raises:
        InputError: there is none, it cannot be read, or the two have other classes.
    """
    if not given:
        if content is None:
            raise InputError(
                f"{path}: these examples have no label map; give the component label_map=FILE, or the command "
                "--label-map."
            )
        return _decode_label_map(path, content)
    label_map = parse_label_map(given, "label_map")
    if content is not None and (difference := describe_difference(_decode_label_map(path, content), label_map)):
        raise InputError(
            f"{path}: has other classes than the parameter label_map ({difference}); leave the parameter out, or give "
            "the label map of these examples."
        )
    return label_map


def format_label_map(label_map: LabelMap) -> str:
    def escape_character(match: re.Match[str]) -> str:
        char = match.group()
        return f"\\{char}" if char in "'\\" else "\\n" if char == "\n" else f"\\{ord(char):03o}"

    def item(class_id: int, name: str) -> str:
        texts = {"name": codes[class_id], "display_name": name} if class_id in codes else {"name": name}
        lines = (f"  {key}: '{_TO_ESCAPE.sub(escape_character, text)}'\n" for key, text in texts.items())
        return f"item {{\n  id: {class_id}\n{''.join(lines)}}}\n"

    codes = {class_id: code for code, class_id in label_map.codes}
    return "".join(item(class_id, name) for class_id, name in label_map.names_by_id)


def parse_label_map(text: str, where: str = "label map") -> LabelMap:
    """Parse `item { id: 1 name: 'person' display_name: ... }` blocks; `display_name` wins, as in the reference.

    Raises:
        InputError: starting with `where`, for any other text.
    """
    return build_label_map(parse_label_map_items(text, where), where)


def build_label_map(items: Iterable[LabelMapItem], where: str = "label map") -> LabelMap:
    """Build the map of the items; raise InputError, starting with `where`, for duplicates or an empty list."""
    items = list(items)
    codes = tuple((item.name, item.class_id) for item in items if item.name and item.name != item.class_name)
    try:
        return LabelMap(tuple((item.class_id, item.class_name) for item in items), codes)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def parse_label_map_items(text: str, where: str = "label map") -> tuple[LabelMapItem, ...]:
    """Return the items in file order; skip other fields of an item, such as `keypoints` blocks.

    Raises:
        InputError: starting with `where`, for any other text.
    """
    try:
        text = _UNICODE_ESCAPE.sub(_octal_escapes, text.removeprefix("\ufeff"))
    except ValueError:  # half of a surrogate pair, or beyond the last character
        raise InputError(f"{where}: got an invalid Unicode escape, allowed: \\uXXXX or \\UXXXXXXXX.") from None
    root = parse_text(text, where, max_values=_MAX_VALUES)
    for name, values in root.values.items():
        if name != "item" or not all(isinstance(value, Message) for value in values):
            raise InputError(f"{values[0].place}: got {name!r}, allowed: a list of 'item {{ id: 1 name: \"...\" }}'.")
    return tuple(map(_parse_item, root.values.get("item", ())))


def _octal_escapes(match: re.Match[str]) -> str:
    """Replace a Unicode escape by octal escapes of its UTF-8 bytes."""
    character = chr(int(match[2] or match[3], 16))
    octals = (f"\\{byte:03o}" for byte in character.encode())
    return match[1] + "".join(octals)


def _parse_item(item: Message) -> LabelMapItem:
    def text_of(key: str) -> str:
        value, *others = item.values.get(key, [None])
        if others:
            raise InputError(
                f"{others[0].place}: {key} occurs twice in one item; put each class into an item of its own."
            )
        return value.value if isinstance(value, Scalar) else ""

    class_id, name, display_name = text_of("id"), text_of("name"), text_of("display_name")
    if not (name or display_name) or not re.fullmatch(f"[0-9]{{1,{_MAX_ID_DIGITS}}}", class_id):
        got = f"id {redact(repr(class_id))} and name {redact(repr(display_name or name))}"
        raise InputError(f"{item.place}: item: got {got}, allowed: a positive id and a name.")
    return LabelMapItem(int(class_id), name, display_name)


def read_label_map(path: Path) -> LabelMap:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the label map cannot be read ({error}).") from None
    return _decode_label_map(str(path), content)


def _decode_label_map(path: str, content: bytes) -> LabelMap:
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()  # any end of line, as in a text file
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the label map cannot be read ({error}).") from None
    return parse_label_map(text, where=path)


def write_label_map(path: Path, label_map: LabelMap) -> None:
    Path(path).write_text(format_label_map(label_map), encoding="utf-8")
