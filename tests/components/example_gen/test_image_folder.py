"""A folder of images: every image file is a record without objects."""

import pytest

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources import image_folder, source_record
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return DataFolder(str(folder))


def read(folder, source="", **settings):
    reader_settings = IngestSettings(**settings)
    chunks = list(image_folder.list_chunks(folder, "s", source, reader_settings))
    return [record for chunk in chunks for record in image_folder.read_chunk(folder, chunk, reader_settings)]


def test_images_in_all_folders_are_records_without_objects(tmp_path):
    folder = touch(tmp_path, "a.jpg", "b/C.PNG", "b/d.tiff", "notes.txt", "b/.hidden.jpg")
    records = read(folder)
    assert [(record.record_key, record.image_path) for record in records] == [
        ("a.jpg", "a.jpg"),
        ("b/C.PNG", "b/C.PNG"),
        ("b/d.tiff", "b/d.tiff"),
    ]
    assert all(record.objects == () and record.declared_hw is None and record.split == "s" for record in records)


def test_keys_are_relative_to_the_source(tmp_path):
    (record,) = read(touch(tmp_path, "x/test/a.jpg", "x/b.jpg"), "x/test")
    assert (record.record_key, record.image_path) == ("a.jpg", "x/test/a.jpg")


def test_the_default_source_is_the_folder_of_images(tmp_path):
    (record,) = read(touch(tmp_path, "photos/a.jpg", "b.jpg"), images_dir="photos")
    assert (record.record_key, record.image_path) == ("a.jpg", "photos/a.jpg")


def test_chunks_have_a_bounded_number_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(source_record, "RECORDS_PER_CHUNK", 2)
    folder = touch(tmp_path, *(f"{number}.jpg" for number in range(5)))
    chunks = image_folder.list_chunks(folder, "s", "", IngestSettings())
    assert [len(chunk.names) for chunk in chunks] == [2, 2, 1]


def test_a_link_that_leads_outside_is_listed_and_reading_it_is_an_error(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(b"")
    folder = touch(tmp_path / "data", "a.jpg")
    (tmp_path / "data" / "b.jpg").symlink_to(tmp_path / "secret.jpg")
    assert [record.record_key for record in read(folder)] == ["a.jpg", "b.jpg"]
    with pytest.raises(SourceError, match="leads out of the data folder"):
        folder.open("b.jpg")


@pytest.mark.parametrize("source", ["", "missing", "../data2"])
def test_a_source_without_images_is_an_error_naming_it(tmp_path, source):
    with pytest.raises(InputError, match=f"{source}: no image"):
        read(touch(tmp_path, "a.txt"), source)
