"""Read untrusted XML with lxml (libxml2, BSD and MIT licences): no document type, no network, bounded bytes and tags.

libxml2's own limits stay enabled: 256 levels, 10 MB for one text or attribute, bounded expansion of entities.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from lxml import etree

from detloom.components.example_gen.data_folder import DataFolder, SourceError, source_error
from detloom.schemas.contracts.rejects import Reason

MAX_MARKS = 1_000_000  # "<" and "=" in one document or streamed element; libxml2 takes about 120 bytes for each
_BLOCK_BYTES = 1 << 16
_FIRST_BYTES = 4096
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
        SourceError: for text that is not XML, a document type declaration, or more than `MAX_MARKS`.
    """
    _check_num_marks(_count_marks(data))
    try:
        root = etree.fromstring(data, etree.XMLParser(**_PARSER_OPTIONS))
    except (etree.LxmlError, ValueError, LookupError) as error:
        raise _syntax_error(error) from None
    _check_has_no_doctype(root)
    return root


def has_root(folder: DataFolder, path: str, tag: str) -> bool:
    """Return whether the first bytes of the file contain a start tag with this name."""
    try:
        with folder.open(path) as file:
            text = file.read(_FIRST_BYTES).replace(b"\0", b"")  # UTF-16 has zeros between the characters
    except (OSError, SourceError):
        return False
    return re.search(rb"<" + tag.encode() + rb"[\s/>]", text) is not None


def stream_children(file: BinaryIO, root_tag: str, tags: tuple[str, ...], max_element_bytes: int) -> Iterator[Any]:
    """Yield the root's children with these names in file order; each is complete, and cleared before the next.

    Raises:
        SourceError: as `parse_xml`; also for another root, or a child larger than `max_element_bytes`.
    """
    parser = etree.XMLPullParser(events=("end",), tag=tags, **_PARSER_OPTIONS)
    root = None
    num_bytes = num_marks = 0  # since the last child
    for block in _iter_blocks(file):
        num_bytes += len(block)
        num_marks += _count_marks(block)
        _check_num_marks(num_marks)
        if num_bytes > max_element_bytes + 2 * _BLOCK_BYTES:
            detail = f"one element takes more than the {max_element_bytes} bytes allowed"
            raise SourceError(Reason.FILE_TOO_LARGE, detail)
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
            num_bytes = num_marks = 0
            yield element
            element.clear()
            while element.getprevious() is not None:
                del root[0]
    try:
        _check_root(parser.close(), root_tag)
    except (etree.LxmlError, ValueError) as error:
        raise _syntax_error(error) from None


def _iter_blocks(file: BinaryIO) -> Iterator[bytes]:
    try:
        while block := file.read(_BLOCK_BYTES):
            yield block
    except OSError as error:
        raise source_error(error) from None


def _count_marks(data: bytes) -> int:
    return data.count(b"<") + data.count(b"=")


def _check_num_marks(num_marks: int) -> None:
    if num_marks > MAX_MARKS:
        detail = f"one annotation has more than {MAX_MARKS} tags and attributes"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, detail)


def _check_root(root: Any, root_tag: str) -> None:
    if root is None or root.tag != root_tag:
        got = "nothing" if root is None else f"<{root.tag:.40}>"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, f"the root element is {got}, not <{root_tag}>")
    _check_has_no_doctype(root)


def _check_has_no_doctype(root: Any) -> None:
    if root.getroottree().docinfo.internalDTD is not None:
        detail = "a DTD or entity declaration is not allowed (<!DOCTYPE>)"
        raise SourceError(Reason.UNREADABLE_ANNOTATION, detail)


def _syntax_error(error: Exception) -> SourceError:
    what = " ".join(str(getattr(error, "msg", None) or error).split())
    if "XML_PARSE_HUGE" in what:  # libxml2 names its own option instead of the limit
        what = "deeper than 256 elements, or one text or attribute above 10 MB"
    return SourceError(Reason.UNREADABLE_ANNOTATION, f"not readable as XML: {what:.120}")
