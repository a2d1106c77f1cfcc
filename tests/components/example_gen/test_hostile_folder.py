"""Damage to files, paths, images and XML: no crash, and every record is counted with the expected reason.

test_hostile_annotations.py tests the other formats, and memory.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from labelled_data import encode_image, png_of_size
from PIL import Image

from detloom.schemas.contracts.rejects import Reason

pytestmark = pytest.mark.reliability("hostile input", "ingest")

WRITTEN = "written"


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode_image(6, exif=exif)


def jpeg_with_frame(marker: int) -> bytes:
    return encode_image(marker).replace(b"\xff\xc0", bytes((0xFF, marker)), 1)


def box(reason: Reason) -> str:
    return f"box:{reason.value}"


GOOD_BOX = (6, 4, 30, 24)


@dataclass
class VocRecord:
    folder: Path
    stem: str

    @property
    def image(self) -> Path:
        return self.folder / f"JPEGImages/{self.stem}.jpg"

    @property
    def xml(self) -> Path:
        return self.folder / f"Annotations/{self.stem}.xml"

    def write(self, *, objects=(("cat", *GOOD_BOX),), filename=None, size=None, image=None) -> None:
        """Write a valid record, except for the given parts."""
        seed = sum(ord(char) * (position + 1) for position, char in enumerate(self.stem))
        self.image.write_bytes(encode_image(seed) if image is None else image)
        items = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
            "</bndbox></object>"
            for name, x1, y1, x2, y2 in objects
        )
        stated = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
        name = f"{self.stem}.jpg" if filename is None else filename
        self.xml.write_text(f"<annotation><filename>{name}</filename>{stated}{items}</annotation>")


def image_of(data: Callable[[], bytes]) -> Callable[[VocRecord], None]:
    return lambda record: record.write(image=data())


def xml_of(data: bytes) -> Callable[[VocRecord], None]:
    return lambda record: record.xml.write_bytes(data)


def box_of(*corners: object, name: str = "cat") -> Callable[[VocRecord], None]:
    return lambda record: record.write(objects=[("cat", *GOOD_BOX), (name, *corners)])


def named(filename: str) -> Callable[[VocRecord], None]:
    return lambda record: record.write(filename=filename)


def link_image(target: Callable[[VocRecord], str]) -> Callable[[VocRecord], None]:
    def make(record: VocRecord) -> None:
        record.image.unlink()
        record.image.symlink_to(target(record))

    return make


def make_outside(record: VocRecord) -> str:
    outside = record.folder.parent / "outside.jpg"
    outside.write_bytes(encode_image(1))
    return str(outside)


def replace_image(make: Callable[[Path], None]) -> Callable[[VocRecord], None]:
    def act(record: VocRecord) -> None:
        record.image.unlink()
        make(record.image)

    return act


def make_sparse(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)


ENTITY_BOMB = (
    b'<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb">'
    + b"".join(f'<!ENTITY b{i} "{f"&b{i - 1 or str()};" * 10}">'.encode() for i in range(1, 10))
    + b"]><annotation><filename>&b9;</filename></annotation>"
)
EXTERNAL_ENTITY = (
    b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>'
)

VOC: dict[str, tuple[Callable[[VocRecord], None], Reason | str]] = {
    "jpeg_cut_in_header": (image_of(lambda: encode_image(2)[:30]), Reason.TRUNCATED_IMAGE),
    "only_the_magic": (image_of(lambda: b"\xff\xd8\xff"), Reason.TRUNCATED_IMAGE),
    "jpeg_of_no_size": (
        image_of(lambda: b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x00\x00\x00\x01\x01\x11\x00\xff\xda\x00\x02\xff\xd9"),
        Reason.UNREADABLE_IMAGE,
    ),
    "png_states_2_31_pixels": (image_of(lambda: png_of_size(2**31 - 1, 2**31 - 1)), Reason.TOO_MANY_PIXELS),
    "lossless_jpeg": (image_of(lambda: jpeg_with_frame(0xC3)), Reason.UNSUPPORTED_FORMAT),
    "arithmetic_jpeg": (image_of(lambda: jpeg_with_frame(0xC9)), Reason.UNSUPPORTED_FORMAT),
    "png_named_jpg": (image_of(lambda: encode_image(7, image_format="PNG")), WRITTEN),
    "cmyk_jpeg": (image_of(lambda: encode_image(8, "CMYK")), WRITTEN),
    "grey_16_bit_png": (image_of(lambda: encode_image(9, "I;16", "PNG")), WRITTEN),
    "animated_png": (
        image_of(
            lambda: encode_image(11, image_format="PNG", save_all=True, append_images=[Image.new("RGB", (60, 40))])
        ),
        WRITTEN,
    ),
    "huge_image_file": (replace_image(lambda path: make_sparse(path, 1 << 33)), Reason.FILE_TOO_LARGE),
    "folder_named_jpg": (replace_image(lambda path: path.mkdir()), Reason.UNREADABLE_FILE),
    "pipe_named_jpg": (replace_image(lambda path: os.mkfifo(path)), Reason.UNREADABLE_FILE),
    "link_outside": (link_image(make_outside), Reason.PATH_OUTSIDE),
    "link_to_device": (link_image(lambda _: "/dev/zero"), Reason.PATH_OUTSIDE),
    "link_to_itself": (link_image(lambda record: record.image.name), Reason.UNREADABLE_FILE),
    "link_to_nothing": (link_image(lambda _: "nothing.jpg"), Reason.MISSING_FILE),
    "traversal_in_filename": (named("../../../etc/passwd"), Reason.PATH_OUTSIDE),
    "absolute_filename": (named("/etc/passwd"), Reason.PATH_OUTSIDE),
    "address_as_filename": (named("http://localhost/x.jpg"), Reason.PATH_OUTSIDE),
    "image_of_another_record": (named("good.jpg"), Reason.DUPLICATE_IMAGE),
    "another_root": (xml_of(b"<html/>"), Reason.UNREADABLE_ANNOTATION),
    "entity_bomb": (xml_of(ENTITY_BOMB), Reason.UNREADABLE_ANNOTATION),
    "external_entity": (xml_of(EXTERNAL_ENTITY), Reason.UNREADABLE_ANNOTATION),
    "huge_xml": (lambda record: make_sparse(record.xml, 1 << 33), Reason.FILE_TOO_LARGE),
    "xml_is_a_pipe": (lambda record: (record.xml.unlink(), os.mkfifo(record.xml)), Reason.UNREADABLE_FILE),
    "xml_links_outside": (
        lambda record: (record.xml.unlink(), record.xml.symlink_to("/etc/passwd")),
        Reason.PATH_OUTSIDE,
    ),
    "box_beyond_float": (box_of(6, 4, "1e999", 24), box(Reason.BOX_NOT_FINITE)),
    "box_huge": (box_of(6, 4, "1e300", 24), box(Reason.BOX_OUTSIDE)),
    "box_of_text": (box_of("left", 4, 30, 24), box(Reason.UNREADABLE_ANNOTATION)),
    "box_of_a_million_digits": (box_of("1" * 1_000_000, 4, 30, 24), box(Reason.BOX_NOT_FINITE)),
    "class_unknown": (box_of(*GOOD_BOX, name="yeti"), box(Reason.UNKNOWN_CLASS)),
    "class_empty": (box_of(*GOOD_BOX, name="  "), box(Reason.UNREADABLE_ANNOTATION)),
    "boxes_10_001": (lambda record: record.write(objects=[("cat", *GOOD_BOX)] * 10_001), Reason.TOO_MANY_BOXES),
}
LISTED = {
    "../../etc/passwd": Reason.PATH_OUTSIDE,
    "/etc/passwd": Reason.PATH_OUTSIDE,
    "a" * 5000: Reason.UNREADABLE_FILE,
}


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory, hostile_ingest) -> Any:
    folder = tmp_path_factory.mktemp("hostile") / "voc"
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    for stem in ("good", "listed_twice", *VOC):
        record = VocRecord(folder, stem)
        record.write()
        if stem in VOC:
            VOC[stem][0](record)
    (folder / "loop").symlink_to(folder)
    lines = ["good", *VOC, *LISTED, "listed_twice", "listed_twice"]
    (folder / "ImageSets/Main/all.txt").write_text("\n".join(lines))
    return hostile_ingest(
        folder,
        "voc",
        splits={"train": "all"},
        classes=("cat",),
        unknown_class="reject",
        exif_rotation="reject",
    )


@pytest.mark.parametrize("name", VOC)
def test_a_damaged_voc_record_is_rejected_with_its_reason(name, voc):
    assert voc.of(name) == VOC[name][1]


@pytest.mark.parametrize("name", LISTED, ids=lambda name: name[:20])
def test_an_invalid_listed_name_is_rejected_with_its_reason(name, voc):
    assert voc.of(name) == LISTED[name]


def test_a_name_listed_twice_is_written_once(voc):
    assert sorted(voc.found["listed_twice"]) == ["record:duplicate_id", WRITTEN]


def test_every_voc_record_is_counted(voc):
    assert voc.found["good"] == [WRITTEN]
    assert voc.report["num_in"] == 1 + len(VOC) + len(LISTED) + 2
    assert voc.report["num_in"] == voc.report["num_written"] + voc.report["num_quarantined"]
    assert voc.report["repairs"]["format_corrected"] >= 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_image_without_read_permission_is_quarantined(tmp_path, hostile_ingest):
    for part in ("Annotations", "JPEGImages"):
        (tmp_path / "voc" / part).mkdir(parents=True)
    for stem in ("good", "secret"):
        VocRecord(tmp_path / "voc", stem).write()
    VocRecord(tmp_path / "voc", "secret").image.chmod(0)
    assert hostile_ingest(tmp_path / "voc", "voc").of("secret") == Reason.UNREADABLE_FILE


def test_an_exif_rotated_image_is_rotated_upright_on_request(tmp_path, hostile_ingest):
    for part in ("Annotations", "JPEGImages"):
        (tmp_path / "voc" / part).mkdir(parents=True)
    VocRecord(tmp_path / "voc", "turned").write(image=turned_jpeg())
    outcome = hostile_ingest(tmp_path / "voc", "voc")
    assert outcome.found == {"turned": [WRITTEN]}
    assert outcome.report["repairs"] == {"exif_rotated": 1}
