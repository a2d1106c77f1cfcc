"""Untrusted XML is read, or rejected with one sentence."""

import io

import pytest

from detloom.components.example_gen.data_folder import SourceError
from detloom.components.example_gen.sources.xml_file import MAX_MARKS, parse_xml, stream_children
from detloom.schemas.contracts.rejects import Reason

BOMB = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;&b;&b;">]><a>&c;</a>'
LIMIT = 1 << 20


def stream(data, limit=LIMIT, tags=("image",)):
    return stream_children(io.BytesIO(data), "annotations", tags, limit)


def test_parsing_returns_the_root():
    root = parse_xml('<?xml version="1.0" encoding="utf-8"?><a><b>é &amp; &#233;</b></a>'.encode())
    assert (root.tag, root.findtext("b")) == ("a", "é & é")


def test_a_byte_order_mark_and_utf_16_are_read():
    assert parse_xml(b"\xef\xbb\xbf<a>x</a>").text == "x"
    assert parse_xml('<?xml version="1.0" encoding="utf-16"?><a>é</a>'.encode("utf-16")).text == "é"


def test_comments_and_processing_instructions_are_left_out():
    assert [child.tag for child in parse_xml(b"<a><!-- x --><?php x ?><b/></a>")] == ["b"]


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize(
    "data",
    [
        BOMB.encode(),
        BOMB.encode("utf-16"),
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1/a.dtd"><a/>',
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a [<!ENTITY b "%s"><!ENTITY c "%s">]><a x="&c;"/>' % (b"x" * 50_000, b"&b;" * 100_000),
    ],
)
def test_a_document_type_is_an_error(data):
    with pytest.raises(SourceError) as caught:
        parse_xml(data)
    assert caught.value.reason is Reason.UNREADABLE_ANNOTATION
    with pytest.raises(SourceError):
        list(stream_children(io.BytesIO(data), "a", ("b",), LIMIT))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"<a>", "XML"),
        (b"<a>&b;</a>", "XML"),
        (b"<a>\xff</a>", "XML"),
        (b"<a>\0</a>", "XML"),
        (b"<a>&#xD800;</a>", "XML"),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "XML"),
        (b"<a>" * 100_000, "XML: deeper than 256 elements"),
        (b"<a>" + b"x" * 11_000_000 + b"</a>", "XML: .* above 10 MB"),
        (b"<a>" + b"<b/>" * (MAX_MARKS - 1) + b"</a>", "1000000 tags"),
    ],
)
def test_text_that_is_not_an_annotation_is_an_error_with_a_short_detail(data, message):
    with pytest.raises(SourceError, match=message) as caught:
        parse_xml(data)
    assert caught.value.reason is Reason.UNREADABLE_ANNOTATION
    assert len(caught.value.detail) < 200
    assert "\n" not in caught.value.detail


def test_children_are_streamed_complete_and_in_order():
    data = b"<annotations><meta><image id='not a child of the root'/></meta>"
    data += b"".join(b"<image id='%d'><box/><box/></image> " % i for i in range(3)) + b"</annotations>"
    assert [(item.get("id"), len(item)) for item in stream(data)] == [("0", 2), ("1", 2), ("2", 2)]


def test_children_may_span_blocks():
    filler = b"<!--" + b"x" * 65_490 + b"-->"  # a block is 65,536 bytes, so the names below are cut at every position
    for shift in range(60):
        data = b"<annotations>" + filler + b" " * shift + b"<image id='7'><box/></image></annotations>"
        assert [item.get("id") for item in stream(data)] == ["7"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "XML"),
        (b"<annotations><image>", "XML"),
        (b"<annotation><image/></annotation>", "<annotation>, not <annotations>"),
        (b"<annotation/>", "<annotation>, not <annotations>"),
        (b"<annotations><image>" + b"<box/>" * 400_000, "1048576 bytes"),
        (b"<annotations>" + b"<junk/>" * 400_000, "1048576 bytes"),
        (b"<annotations><image a='" + b"x" * 2_000_000, "1048576 bytes"),
        (b"<!DOCTYPE annotations><annotations><image/></annotations>", "DTD"),
    ],
)
def test_a_stream_that_is_not_an_annotation_is_an_error(data, message):
    with pytest.raises(SourceError, match=message):
        list(stream(data))


@pytest.mark.reliability("hostile input", "ingest")
def test_tags_of_one_streamed_element_are_limited():
    data = b"<annotations>" + b"<image/>" * 9 + b"<image>" + b"<b a=''/>" * MAX_MARKS
    with pytest.raises(SourceError, match="1000000 tags"):
        list(stream(data, limit=16 << 20))


def test_streamed_elements_are_freed():
    data = b"<annotations>" + b"<image><box a='1'/></image>" * 20_000 + b"</annotations>"
    num_images = 0
    for image in stream(data):
        num_images += 1
        before = image.getprevious()  # cleared, and the only one
        assert before is None or not (len(before) or before.attrib or before.getprevious() is not None)
    assert num_images == 20_000
