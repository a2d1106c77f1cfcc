"""Damaged files of a data set: no crash, and every record is counted with the expected reason.

The readers' own tests have more cases. test_hostile_annotations.py tests memory.
"""

import os
from pathlib import Path

import pytest
from labelled_data import encode_image, format_voc, png_of_size, read_rejects, write_files

from detloom.schemas.contracts.rejects import Reason

GOOD_BOX = ("cat", 6, 4, 30, 24)


def annotation(name: str, *corners: object) -> str:
    return format_voc(name, [GOOD_BOX, ("cat", *corners)] if corners else [GOOD_BOX])


# Content of the image, content of the annotation file (None: as usual), and the reason of the reject.
RECORDS: dict[str, tuple[bytes | None, str | None, Reason]] = {
    "not_an_image": (b"text", None, Reason.NOT_AN_IMAGE),
    "only_the_magic": (b"\xff\xd8\xff", None, Reason.TRUNCATED_IMAGE),
    "png_states_2_31_pixels": (png_of_size(2**31 - 1, 2**31 - 1), None, Reason.TOO_MANY_PIXELS),
    "large": (bytes(2 << 20), None, Reason.FILE_TOO_LARGE),
    "image_of_another": (None, annotation("good.jpg"), Reason.DUPLICATE_IMAGE),
    "another_root": (None, "<html/>", Reason.UNREADABLE_ANNOTATION),
    "box_beyond_float": (None, annotation("box_beyond_float.jpg", 6, 4, "1e999", 24), Reason.BOX_NOT_FINITE),
    "box_of_text": (None, annotation("box_of_text.jpg", "left", 4, 30, 24), Reason.UNREADABLE_ANNOTATION),
    "box_of_a_million_digits": (
        None,
        annotation("box_of_a_million_digits.jpg", "1" * 1_000_000, 4, 30, 24),
        Reason.BOX_NOT_FINITE,
    ),
}


@pytest.mark.reliability("hostile input", "ingest")
def test_every_damaged_record_is_counted_with_its_reason(tmp_path: Path, run_ingest) -> None:
    folder = tmp_path / "voc"
    for number, (stem, (image, text, _)) in enumerate({"good": (None, None, None), **RECORDS}.items()):
        files = {f"JPEGImages/{stem}.jpg": encode_image(number) if image is None else image}
        write_files(folder, {**files, f"Annotations/{stem}.xml": text or annotation(f"{stem}.jpg")})
    os.mkfifo(folder / "JPEGImages/pipe.jpg")
    (folder / "Annotations/pipe.xml").write_text(annotation("pipe.jpg"))
    (folder / "loop").symlink_to(folder)
    lines = ["good", *RECORDS, "pipe", "a" * 5000, "good"]
    write_files(folder, {"ImageSets/Main/all.txt": "\n".join(lines)})
    report = run_ingest(
        folder, tmp_path / "out", splits={"train": "all"}, max_reject_fraction=1.0, max_image_bytes=1 << 20
    )
    found = {reject.record_key: reject.reason for reject in read_rejects(tmp_path / "out/rejects")}
    expected = {stem: reason for stem, (_, _, reason) in RECORDS.items()}
    others = {"pipe": Reason.UNREADABLE_FILE, "a" * 5000: Reason.UNREADABLE_FILE, "good": Reason.DUPLICATE_ID}
    assert found == expected | others
    num_with_one_bad_box = 3
    assert (report["num_in"], report["num_written"]) == (len(lines), 1 + num_with_one_bad_box)
    assert report["num_in"] == report["num_written"] + report["num_quarantined"]
