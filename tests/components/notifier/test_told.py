from detloom.components.notifier.told import MAX_ENTRIES, TOLD_FILE, Told


def test_the_list_outlives_its_reader(tmp_path):
    Told(str(tmp_path / "node")).add("a", "webhook")
    told = Told(str(tmp_path / "node"))
    assert told.has("a", "webhook")
    assert not told.has("a", "email")
    assert not told.has("b", "webhook")


def test_without_a_folder_it_lasts_as_long_as_the_object():
    told = Told(None)
    told.add("a", "email")
    assert told.has("a", "email")
    assert not Told(None).has("a", "email")


def test_the_oldest_entries_go(tmp_path):
    (tmp_path / TOLD_FILE).write_text("".join(f"{number} email\n" for number in range(MAX_ENTRIES)))
    Told(str(tmp_path)).add("new", "email")
    told = Told(str(tmp_path))
    assert told.has("new", "email")
    assert told.has("1", "email")
    assert not told.has("0", "email")


def test_a_list_that_is_no_text_is_read_as_far_as_it_goes(tmp_path):
    (tmp_path / TOLD_FILE).write_bytes(b"\xff\xfe\na email\n")
    assert Told(str(tmp_path)).has("a", "email")


def test_a_list_that_cannot_be_read_or_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "node").write_text("a file")
    told = Told(str(tmp_path / "node"))
    told.add("a", "email")
    assert told.has("a", "email")
    assert "Notifier: told.txt cannot be read (" in caplog.text
    assert "Notifier: told.txt cannot be written (" in caplog.text
