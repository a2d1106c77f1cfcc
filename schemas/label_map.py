"""The label map: class ids on disk (1-based) and their names, in the Object Detection API's text format."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detloom.schemas.errors import InputError

LABEL_MAP_FILE = "label_map.pbtxt"  # its name inside an examples artifact
# Protocol buffers' text format, one token a match. No two ways lead through a text, so that it takes linear time.
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<quoted>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
      | (?P<word>[\w.+-]+)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<char>.))"
)
_ESCAPED_CHARS = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_TO_ESCAPE = re.compile(r"""[\x00-\x1f\x7f'\\]""")  # of which \r would come back as \n from a text file
_CLOSING = {"{": "}", "<": ">", "[": "]"}
_MAX_ID_DIGITS = 18  # below 2**63


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
            twice = sorted(value for value, count in Counter(values).items() if count > 1)
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


@dataclass(frozen=True, slots=True)
class LabelMapItem:
    """One item as it stands in a file; `display_name` is the class's name where there is one, `name` then a code."""

    class_id: int
    name: str
    display_name: str

    @property
    def class_name(self) -> str:
        return self.display_name or self.name


def format_label_map(label_map: LabelMap) -> str:
    def escape(match: re.Match[str]) -> str:
        char = match.group()
        return f"\\{char}" if char in "'\\" else "\\n" if char == "\n" else f"\\{ord(char):03o}"

    return "".join(
        f"item {{\n  id: {i}\n  name: '{_TO_ESCAPE.sub(escape, name)}'\n}}\n" for i, name in label_map.names_by_id
    )


def parse_label_map(text: str, where: str = "label map") -> LabelMap:
    """Parse `item { id: 1 name: 'person' display_name: ... }` blocks; `display_name` wins, as in the reference.

    Raises:
        InputError: naming `where`, for anything that is not such a list.
    """
    return build_label_map(parse_label_map_items(text, where), where)


def build_label_map(items: Iterable[LabelMapItem], where: str = "label map") -> LabelMap:
    """The classes of the items; `InputError` naming `where` if two contradict one another or there is none."""
    try:
        return LabelMap(tuple((item.class_id, item.class_name) for item in items))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def parse_label_map_items(text: str, where: str = "label map") -> tuple[LabelMapItem, ...]:
    """The items in their order; other fields of an item, blocks such as `keypoints` among them, are passed over.

    Raises:
        InputError: naming `where`, for anything that is not such a list.
    """
    text = text.removeprefix("\ufeff")
    items: list[LabelMapItem] = []
    tokens = _read_tokens(text, where)
    for _, found, start in tokens:
        if found in (",", ";"):
            continue
        opening = next(tokens, ("", "", 0))[1] if found == "item" else ""
        if opening == ":":
            opening = next(tokens, ("", "", 0))[1]
        if opening not in ("{", "<"):
            raise _not_a_list(text, start, where)
        fields = _read_fields(tokens, opening, text, start, where)
        class_id, name, display_name = (fields.get(key, "") for key in ("id", "name", "display_name"))
        if not (name or display_name) or not re.fullmatch(f"[0-9]{{1,{_MAX_ID_DIGITS}}}", class_id):
            body = " ".join(text[start : start + 200].split())
            raise InputError(f"{where}: {body[:60]!r} needs a positive id and a name.")
        items.append(LabelMapItem(int(class_id), name, display_name))
    return tuple(items)


_Token = tuple[str, str, int]  # its kind, itself, where it begins


def _read_tokens(text: str, where: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _not_a_list(text, at, where)
        at = match.end()
        if match.lastgroup != "space":
            yield str(match.lastgroup), match.group(), match.start()


def _read_fields(tokens: Iterator[_Token], opening: str, text: str, start: int, where: str) -> dict[str, str]:
    """The values of the fields up to the end of the block, as text; those of blocks inside it are left out.

    Of a field that stands twice the last counts. Adjacent quoted texts are one.
    """
    fields: dict[str, str] = {}
    closing = [_CLOSING[opening]]  # of the blocks that are open
    key = ""
    is_value = False
    for kind, found, at in tokens:
        if found in _CLOSING:
            closing.append(_CLOSING[found])
        elif found == closing[-1]:
            closing.pop()
            if not closing:
                return fields
            key = "" if len(closing) == 1 else key
        elif kind == "mark" and found not in ":,;":
            raise _not_a_list(text, at, where)
        elif len(closing) > 1:
            continue
        elif found == ":":
            is_value = True
            fields.pop(key, None)
            continue
        elif kind == "quoted" and key:
            fields[key] = fields.get(key, "") + _unescape(found, where)
        elif kind == "word":
            if is_value and key:
                fields[key] = found
            key = "" if is_value else found
        is_value = False
    raise _not_a_list(text, start, where)


def _unescape(quoted: str, where: str) -> str:
    """The text in the quotes. Octal and hexadecimal escapes are bytes of its UTF-8."""
    if "\\" not in quoted:
        return quoted[1:-1]

    def decode(match: re.Match[str]) -> str:
        octal, digits, short, long, char = match.group("octal", "hex", "u", "U", "char")
        if octal or digits:
            return chr(int(octal, 8) & 0xFF if octal else int(digits, 16))
        if short or long:
            code = int(short or long, 16)
            return chr(code).encode().decode("latin-1")
        return str(_ESCAPED_CHARS.get(char, char))

    try:
        # One character a byte, so that bytes and text mix.
        data = _ESCAPE.sub(decode, quoted[1:-1].encode().decode("latin-1"))
        return data.encode("latin-1").decode()
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {quoted[:60]!r} is not text in UTF-8.") from None


def _not_a_list(text: str, at: int, where: str) -> InputError:
    got = text[at : at + 200].strip()[:60]
    return InputError(f"{where}: got {got!r}, allowed: a list of 'item {{ id: 1 name: \"...\" }}'.")


def read_label_map(path: Path) -> LabelMap:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the label map cannot be read ({error}).") from None
    return parse_label_map(text, where=str(path))


def write_label_map(path: Path, label_map: LabelMap) -> None:
    Path(path).write_text(format_label_map(label_map), encoding="utf-8")
