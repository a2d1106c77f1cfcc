"""Quarantined records are corrected and read again."""

import pytest

from detloom.components.example_gen.ingest import IngestFolders
from detloom.components.example_gen.replay import replay
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.rejects import read_rejects
from detloom.schemas.errors import InputError


@pytest.fixture
def run_replay(tmp_path, without_beam):
    def run(root=""):
        out = IngestFolders(str(tmp_path / "again"), str(tmp_path / "again/rejects"))
        return replay(tmp_path / "out/rejects", out, dict, root)

    return run


def test_corrected_records_are_written_and_the_others_quarantined_again(
    make_voc, tmp_path, run_ingest, read_features, run_replay
):
    folder = make_voc({"train": ["a", "b", "c", "d"], "val": ["e"]}, {"d": [("dog", 1, 1, 9, 9)]})
    image = (folder / "JPEGImages/a.jpg").read_bytes()
    annotation = (folder / "Annotations/b.xml").read_text()
    (folder / "JPEGImages/a.jpg").write_bytes(image[:-40])
    (folder / "Annotations/b.xml").write_text("<annot")
    (folder / "JPEGImages/c.jpg").write_text("no image")
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    (folder / "JPEGImages/a.jpg").write_bytes(image)
    (folder / "Annotations/b.xml").write_text(annotation)
    report = run_replay()
    assert (report["num_asked"], report["num_in"], report["num_written"], report["num_quarantined"]) == (3, 3, 2, 1)
    found = read_features(tmp_path / "again/Split-train")
    assert sorted(feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0] for feature in found) == [b"a", b"b"]
    assert [reject.record_key for reject in read_rejects(tmp_path / "again/rejects")] == ["c"]
    assert report["label_map"] == [[1, "cat"], [2, "dog"]]  # unchanged, although no dog is read again


def test_a_record_deleted_from_the_source_shows_in_the_counts(make_voc, tmp_path, run_ingest, run_replay):
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    (folder / "JPEGImages/a.jpg").write_text("no image")
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    (folder / "ImageSets/Main/train.txt").write_text("b\n")
    report = run_replay()
    assert (report["num_asked"], report["num_in"]) == (1, 0)


def test_a_moved_data_folder_can_be_given(make_voc, tmp_path, run_ingest, run_replay):
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    image = (folder / "JPEGImages/a.jpg").read_bytes()
    (folder / "JPEGImages/a.jpg").unlink()
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    (folder / "JPEGImages/a.jpg").write_bytes(image)
    folder.rename(tmp_path / "moved")
    assert run_replay(str(tmp_path / "moved"))["num_written"] == 1


def test_with_ratios_a_record_keeps_its_split(make_voc, tmp_path, run_ingest, run_replay):
    folder = make_voc({"all": [f"{index:02d}" for index in range(20)]})
    settings = {
        "splits": {},
        "split_by_ratio": {"train": 0.5, "eval": 0.5},
        "source": "all",
        "max_reject_fraction": 1.0,
    }
    expected = run_ingest(folder, tmp_path / "whole", **settings)["splits"]
    damaged = {path: path.read_bytes() for path in sorted((folder / "JPEGImages").iterdir())[:8]}
    for path in damaged:
        path.write_bytes(b"")
    first = run_ingest(folder, tmp_path / "out", **settings)["splits"]
    for path, image in damaged.items():
        path.write_bytes(image)
    second = run_replay()["splits"]
    for split in ("train", "eval"):
        assert first[split]["num_written"] + second[split]["num_written"] == expected[split]["num_written"]


def test_nothing_to_replay_is_an_error(make_voc, tmp_path, run_ingest, run_replay):
    with pytest.raises(InputError, match=r"report\.json: "):
        run_replay()
    run_ingest(make_voc({"train": ["a"], "val": ["e"]}), tmp_path / "out")
    with pytest.raises(InputError, match=r"rejects\.jsonl: .*no quarantined record"):
        run_replay()


def test_a_replay_into_the_original_output_is_an_error(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    (folder / "JPEGImages/a.jpg").write_text("no image")
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    out = IngestFolders(str(tmp_path / "out"), str(tmp_path / "out/rejects"))
    with pytest.raises(InputError, match="replay"):
        replay(tmp_path / "out/rejects", out, dict)
    assert len(list(read_rejects(tmp_path / "out/rejects"))) == 1


def test_stratified_groups_cannot_be_replayed(make_voc, tmp_path, run_ingest, run_replay):
    folder = make_voc({"all": [f"cam{index % 4}_{index}" for index in range(16)]})
    (folder / "JPEGImages/cam1_1.jpg").write_text("no image")
    settings = {"split_by_ratio": {"train": 0.5, "eval": 0.5}, "group_by": "(cam[0-9]+)_", "stratify": True}
    run_ingest(folder, tmp_path / "out", splits={}, source="all", max_reject_fraction=1.0, **settings)
    with pytest.raises(InputError, match="stratify"):
        run_replay()


@pytest.mark.reliability("torn file", "ingest")
def test_a_truncated_quarantine_is_an_error_with_its_line(make_voc, tmp_path, run_ingest, run_replay):
    folder = make_voc({"train": ["a", "b"], "val": ["e"]})
    (folder / "JPEGImages/a.jpg").write_text("no image")
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    path = tmp_path / "out/rejects/rejects.jsonl"
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match=r"rejects\.jsonl:1: "):
        run_replay()
