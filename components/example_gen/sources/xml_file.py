"""Parse untrusted XML: no DTD, so no entities; no network; bounded bytes, tags, names and depth.

lxml (libxml2, BSD and MIT licences) reads a VOC file five times as fast as defusedxml. Its own limits stay enabled: 256
levels, 10 MB for one text or attribute.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers import expat

from lxml import etree

from detloom.components.example_gen.data_folder import DataFolder, SourceError, source_error
from detloom.schemas.contracts.rejects import Reason

MAX_MARKS = 1_000_000  # number of < and = in one document or streamed element; libxml2 keeps about 120 bytes for each
MAX_NAMES = 1_000  # different element names; libxml2 keeps them until the thread ends
_SMALL_BYTES = 1 << 16  # below this, names are not counted
_BLOCK_BYTES = 1 << 16
_FIRST_BYTES = 4096
_ELEMENT_NAME = re.compile(rb"<([^\s<>/=!?]+)")
_DOCTYPE = b"<!DOCTYPE"
_UNKNOWN_ENCODING = expat.errors.codes[expat.errors.XML_ERROR_UNKNOWN_ENCODING]
_PARSER_OPTIONS: dict[str, Any] = {
    "resolve_entities": False,
    "load_dtd": False,
    "dtd_validation": False,
    "no_network": True,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
    "collect_ids": False,  # avoids an unused table of all xml:id attributes
}


def parse_xml(data: bytes) -> Any:
    """Return the root element.

    Raises:
        SourceError: for text that is not XML, a document type declaration, or more content than an annotation can need.
    """
    text = _without_zeros(data)
    if _DOCTYPE in text:
        raise _doctype_error()
    if len(text) > _SMALL_BYTES:
        _check_marks(text.count(b"<") + text.count(b"="))
        _check_names(set(_ELEMENT_NAME.findall(text)))
    try:
        root = etree.fromstring(data, etree.XMLParser(**_PARSER_OPTIONS))
    except (etree.LxmlError, ValueError, LookupError) as error:
        raise _syntax_error(error) from None
    if root.getroottree().docinfo.internalDTD is not None:  # a DTD in an encoding that hides the bytes searched above
        raise _doctype_error()
    return root


def has_root(folder: DataFolder, path: str, tag: str) -> bool:
    """Return whether the first bytes of the file contain a start tag with this name."""
    try:
        with folder.open(path) as file:
            text = _without_zeros(file.read(_FIRST_BYTES))
    except (OSError, SourceError):
        return False
    return re.search(rb"<" + tag.encode() + rb"[\s/>]", text) is not None


def stream_children(file: BinaryIO, root_tag: str, tags: tuple[str, ...], max_element_bytes: int) -> Iterator[Any]:
    """Yield the root's children with these names in file order; each is complete, and cleared before the next.

    Raises:
        SourceError: as `parse_xml`; also for another root, or a child larger than `max_element_bytes`.
    """
    parser = etree.XMLPullParser(events=("end",), tag=tags, **_PARSER_OPTIONS)
    scan = _Scan(max_element_bytes)
    root = None
    for block in _blocks(file):
        scan.check(block)
        try:
            parser.feed(block)
        except (etree.LxmlError, ValueError, LookupError) as error:
            raise _syntax_error(error) from None
        for _, element in parser.read_events():
            if root is None:
                root = element.getroottree().getroot()
                _check_root(root, root_tag)
            if element.getparent() is not root:
                continue
            scan.start_element()
            yield element
            element.clear()
            while element.getprevious() is not None:
                del root[0]
    try:
        _check_root(parser.close(), root_tag)
    except (etree.LxmlError, ValueError) as error:
        raise _syntax_error(error) from None


class ChildScan:
    """The places of the root's children in a file; to be iterated once.

    Expat finds them, because lxml does not tell the offsets of elements.

    Attributes:
        end: offset of the root's end tag; set by the end of the iteration.
        is_divisible: children can be parsed without the start of the file: it is UTF-8, and has no namespaces.
    """

    def __init__(self, file: BinaryIO, root_tag: str, max_element_bytes: int) -> None:
        self.end = 0
        self.is_divisible = True
        self._file, self._root_tag = file, root_tag
        self._scan = _Scan(max_element_bytes)
        self._found: list[tuple[int, str, dict[str, str]]] = []
        self._depth = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.XmlDeclHandler = self._read_declaration
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def __iter__(self) -> Iterator[tuple[int, str, dict[str, str]]]:
        """Yield byte offset, name and attributes of each child.

        Raises:
            SourceError: as `stream_children`.
        """
        try:
            for block in _blocks(self._file):
                self._scan.check(block)
                self._parser.Parse(block, False)
                yield from self._found
                self._found.clear()
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            if error.code != _UNKNOWN_ENCODING:
                raise _syntax_error(error) from None
            self.is_divisible = False
        except (ValueError, LookupError):  # an encoding that only lxml knows
            self.is_divisible = False

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._depth == 0:
            _check_root_tag(tag, self._root_tag)
            if self._scan.has_zeros or any(name.startswith("xmlns") for name in attributes):
                self.is_divisible = False
        elif self._depth == 1:
            self._found.append((self._parser.CurrentByteIndex, tag, attributes))
        self._depth += 1

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.end = self._parser.CurrentByteIndex
        elif self._depth == 1:
            self._scan.start_element()

    def _read_declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        if (encoding or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
            self.is_divisible = False

    def _refuse_doctype(self, *names: object) -> None:
        raise _doctype_error()


class _Scan:
    """A scanner that checks the bytes before the parser gets them."""

    def __init__(self, max_element_bytes: int) -> None:
        self._max_element_bytes = max_element_bytes
        self._names: set[bytes] = set()
        self._tail = b""
        self._num_bytes = self._num_marks = 0
        self.has_zeros: bool | None = None

    def check(self, block: bytes) -> None:
        if self.has_zeros is None:
            self.has_zeros = b"\0" in block[:4]
        text = self._tail + (block.replace(b"\0", b"") if self.has_zeros else block)
        if _DOCTYPE in text:
            raise _doctype_error()
        # The text after the last "<" may be cut; the next block completes it.
        cut = text.rfind(b"<", max(len(text) - 1024, 0))
        cut = len(text) if cut < 0 else cut
        self._names.update(_ELEMENT_NAME.findall(text, 0, cut))
        _check_names(self._names)
        self._tail = text[cut:]
        self._num_bytes += len(block)
        self._num_marks += block.count(b"<") + block.count(b"=")
        _check_marks(self._num_marks)
        if self._num_bytes > self._max_element_bytes + 2 * _BLOCK_BYTES:
            detail = f"one element takes more than the {self._max_element_bytes} bytes allowed"
            raise SourceError(Reason.FILE_TOO_LARGE, detail)

    def start_element(self) -> None:
        self._num_bytes = self._num_marks = 0


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    try:
        while block := file.read(_BLOCK_BYTES):
            yield block
    except OSError as error:
        raise source_error(error) from None


def _without_zeros(data: bytes) -> bytes:
    """Return bytes in which markup can be searched: UTF-16 and UTF-32 have zeros between them."""
    return data.replace(b"\0", b"") if b"\0" in data[:4] else data


def _check_marks(num_marks: int) -> None:
    if num_marks > MAX_MARKS:
        detail = f"one annotation has more than {MAX_MARKS} tags and attributes"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, detail)


def _check_names(names: set[bytes]) -> None:
    if len(names) > MAX_NAMES:
        detail = f"more than {MAX_NAMES} different element names; annotations have about twenty"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, detail)


def _check_root(root: Any, root_tag: str) -> None:
    _check_root_tag(None if root is None else root.tag, root_tag)
    if root.getroottree().docinfo.internalDTD is not None:
        raise _doctype_error()


def _check_root_tag(tag: str | None, root_tag: str) -> None:
    if tag != root_tag:
        got = "nothing" if tag is None else f"<{tag:.40}>"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, f"the root element is {got}, not <{root_tag}>")


def _doctype_error() -> SourceError:
    return SourceError(Reason.UNREADABLE_ANNOTATION, "a DTD or entity declaration is not allowed (<!DOCTYPE>)")


def _syntax_error(error: Exception) -> SourceError:
    what = " ".join(str(getattr(error, "msg", None) or error).split())
    if "XML_PARSE_HUGE" in what:  # libxml2 names its own option instead of the limit
        what = "deeper than 256 elements, or one text or attribute above 10 MB"
    return SourceError(Reason.UNREADABLE_ANNOTATION, f"not readable as XML: {what:.120}")
