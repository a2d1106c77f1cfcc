"""Uploads of the files that a command wrote to a temporary folder."""

from detloom.components.storage.local_copy import local_output


def test_hidden_files_and_links_are_not_uploaded(google_bucket, tmp_path):
    (tmp_path / "secret").write_text("not of the output")
    with local_output("gs://bucket/out") as folder:
        for name in ("a", "b/c", ".hidden", ".records/x", "b/.d/e/f"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        (folder / "link").symlink_to(tmp_path / "secret")
        (folder / "linked").symlink_to(tmp_path)
    assert google_bucket.contents() == {"out/a": b"a", "out/b/c": b"b/c"}
