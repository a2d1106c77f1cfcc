import os

from detloom.components.example_gen import sort_entries as sort_entries_module
from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sort_entries import sort_entries
from detloom.components.storage.storage import Entry

_ENTRIES = [
    Entry("z", 3, 30),
    Entry("a", is_folder=True),
    Entry("\udcff", 4, 40),  # a name that is not UTF-8
    Entry("b", 1, 2**62),
    Entry("é", 2, 20),
    Entry("B", is_folder=True),
]


def test_files_come_before_folders_in_memory_and_on_disk(monkeypatch):
    in_memory = list(sort_entries(_ENTRIES))
    assert [entry.path for entry in in_memory] == ["b", "z", "é", "\udcff", "B", "a"]
    monkeypatch.setattr(sort_entries_module, "_MAX_IN_MEMORY", 2)
    assert list(sort_entries(_ENTRIES)) == in_memory


def test_a_folder_is_listed_without_looking_at_each_file(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"{number:02d}.jpg").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.txt").write_bytes(b"12")
    calls = []
    real = os.lstat, os.stat
    monkeypatch.setattr(os, "lstat", lambda *args, **kwargs: calls.append(args) or real[0](*args, **kwargs))
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: calls.append(args) or real[1](*args, **kwargs))
    folder = DataFolder(str(tmp_path))
    assert len(list(folder.iter_files("", (".JPG",)))) == 20
    assert folder.list_folders() == ["sub"]
    for_folders = len(calls)
    assert for_folders < 60  # of the parents of tmp_path and sub, when links are resolved
    for number in range(20, 120):
        (tmp_path / f"{number:03d}.jpg").write_bytes(b"1")
    calls.clear()
    list(folder.iter_files())
    folder.list_folders()
    assert len(calls) <= for_folders
