"""A folder of images: every image file is a record without objects."""

from labelled_data import write_files

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import image_folder
from detloom.schemas.run_file.data import IngestSettings


def touch(folder, *names):
    return DataFolder(str(write_files(folder, dict.fromkeys(names, b""))))


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
