"""Ingestion end to end: shards, quarantine, report; with Beam only where its job matters."""

import json
import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_pipeline
from labelled_data import read_rejects

from detloom.components.example_gen import write_shard as write_shard_module
from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.ingest_job import IngestJob, encode_record
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.plan import Plan, Shard
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.components.example_gen.write_shard import read_shard_outcome, write_shard
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_record_is_written_or_quarantined_and_counted(make_voc, tmp_path, run_ingest, read_features):
    objects = {"b": [("cat", 5, 5, 5, 9), ("dog", -1, 1, 9, 9)], "c": []}
    folder = make_voc({"train": ["a", "b", "c", "d"], "val": ["e"]}, objects)
    (folder / "JPEGImages/d.jpg").write_text("This is not an image.")
    report = run_ingest(folder, tmp_path / "out", max_reject_fraction=0.5)
    train = report["splits"]["train"]
    assert (train["num_in"], train["num_written"], train["num_quarantined"]) == (4, 3, 1)
    assert (train["num_without_boxes"], train["num_boxes_written"], train["num_boxes_rejected"]) == (1, 2, 1)
    assert train["num_boxes_quarantined"] == 1
    assert train["repairs"] == {"box_clipped": 1}
    assert train["boxes_by_class"] == {"cat": 1, "dog": 1}
    assert report["rejects_by_reason"] == {"box_without_area": 1, "not_an_image": 1}
    assert json.loads((tmp_path / "out/rejects/report.json").read_text()) == report
    found = {(reject.reason, reject.file) for reject in read_rejects(tmp_path / "out/rejects")}
    assert found == {
        (Reason.BOX_WITHOUT_AREA, "Annotations/b.xml"),
        (Reason.NOT_AN_IMAGE, "JPEGImages/d.jpg"),
    }
    written = {
        feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0] for feature in read_features(tmp_path / "out/Split-train")
    }
    assert written == {b"a", b"b", b"c"}
    assert read_label_map(tmp_path / "out/label_map.pbtxt").names == ("cat", "dog")


@pytest.mark.reliability("hostile input", "ingest")
def test_missing_images_and_links_that_lead_nowhere_or_outside_are_quarantined(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a", "b", "c", "d"], "val": ["e"]})
    (folder / "JPEGImages/a.jpg").rename(tmp_path / "elsewhere.jpg")
    (folder / "JPEGImages/a.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    for name in "bc":
        (folder / f"JPEGImages/{name}.jpg").unlink()
    (folder / "JPEGImages/b.jpg").symlink_to("b.jpg")
    run_ingest(folder, tmp_path / "out", max_reject_fraction=1.0)
    found = {reject.file: (reject.reason, reject.scope) for reject in read_rejects(tmp_path / "out/rejects")}
    assert found == {
        "JPEGImages/a.jpg": (Reason.PATH_OUTSIDE, "record"),
        "JPEGImages/b.jpg": (Reason.UNREADABLE_FILE, "record"),
        "JPEGImages/c.jpg": (Reason.MISSING_FILE, "record"),
    }


def test_output_bytes_do_not_depend_on_workers_or_attempts(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": [f"t{index}" for index in range(24)], "val": ["e"]})

    def two_workers():
        return test_pipeline.TestPipeline(
            options=PipelineOptions(direct_running_mode="multi_threading", direct_num_workers=2)
        )

    run_ingest(folder, tmp_path / "one", shard_max_bytes=20_000)
    run_ingest(folder, tmp_path / "two", shard_max_bytes=10_000)
    run_ingest(folder, tmp_path / "two", two_workers, shard_max_bytes=20_000)
    one = read_tree(tmp_path / "one")
    assert len([name for name in one if name.startswith("Split-train/")]) > 2
    assert one == read_tree(tmp_path / "two")


def test_identical_images_are_written_to_one_split(make_voc, tmp_path, run_ingest, read_features):
    folder = make_voc({"train": [f"t{index}" for index in range(12)]})
    for index in range(0, 12, 2):
        shutil.copyfile(folder / f"JPEGImages/t{index}.jpg", folder / f"JPEGImages/t{index + 1}.jpg")
    ratios = {"splits": {}, "split_by_ratio": {"train": 0.5, "eval": 0.5}, "source": "train"}
    report = run_ingest(folder, tmp_path / "out", test_pipeline.TestPipeline, **ratios)
    assert report["num_written"] == 12
    digests = [
        {each[keys.IMAGE_SHA256].bytes_list.value[0] for each in read_features(tmp_path / f"out/Split-{split}")}
        for split in ("train", "eval")
    ]
    assert len(digests[0] | digests[1]) == 6
    assert not digests[0] & digests[1]


def test_a_test_split_is_cut_from_training_and_the_others_stay(make_voc, tmp_path, run_ingest, read_features):
    folder = make_voc({"train": [f"t{index}" for index in range(24)], "val": ["a", "b"]})
    for index in range(0, 24, 2):
        shutil.copyfile(folder / f"JPEGImages/t{index}.jpg", folder / f"JPEGImages/t{index + 1}.jpg")
    splits = {"splits": {"train": "train", "eval": "val"}, "cut_from_train": {"test": 0.4}}
    report = run_ingest(folder, tmp_path / "out", test_pipeline.TestPipeline, **splits)
    num_by_split = {split: counts["num_written"] for split, counts in report["splits"].items()}
    assert num_by_split["eval"] == 2
    assert 4 <= num_by_split["test"] == 24 - num_by_split["train"] <= 16
    train, test = (
        {each[keys.IMAGE_SHA256].bytes_list.value[0] for each in read_features(tmp_path / f"out/Split-{split}")}
        for split in ("train", "test")
    )
    assert (len(train | test), len(train & test)) == (12, 0)  # equal images are together


@pytest.mark.parametrize(("lists", "message"), [(["val"], "needs a split train"), (["train", "test"], "test itself")])
def test_a_split_is_cut_only_if_it_can_be(make_voc, tmp_path, run_ingest, lists, message):
    with pytest.raises(InputError, match=message):
        run_ingest(make_voc({name: ["a"] for name in lists}), tmp_path / "out", splits={}, cut_from_train={"test": 0.4})


@pytest.fixture
def make_job(tmp_path):
    """Return a job with one planned shard, `train` 0, that holds the given records."""

    def make(folder, records):
        job = IngestJob(
            params=ExampleGenParams(format="voc"),
            data_format="voc",
            root=str(folder),
            subfolders=("",),
            sources={"train": "train"},
            examples=str(tmp_path),
            output_splits=("train",),
        )
        with job.staging.open_to_write(job.shard_records_file("train", 0)) as file:
            for record in records:
                file.write(encode_record(record) + b"\n")
        job.staging.write_json(job.plan_file, {**vars(Plan()), "label_map": [[1, "cat"]], "unlisted": {}})
        return job

    return make


@pytest.mark.reliability("kill", "ingest")
def test_a_partly_written_shard_is_not_visible(make_voc, tmp_path, monkeypatch, make_job):
    folder = make_voc({"train": ["a", "b", "c"]})
    records = [
        SourceRecord("train", stem, f"JPEGImages/{stem}.jpg", f"Annotations/{stem}.xml", None, ()) for stem in "abc"
    ]
    job, shard = make_job(folder, records), Shard("train", 0, 1)
    build = write_shard_module.build_example

    def die_on_the_second(record, *args, **kwargs):
        if record.record_key == "b":
            raise KeyboardInterrupt
        return build(record, *args, **kwargs)

    monkeypatch.setattr(write_shard_module, "build_example", die_on_the_second)
    with pytest.raises(KeyboardInterrupt):
        write_shard(shard, job)
    assert list((tmp_path / ".incomplete/finished").rglob("*")) == [tmp_path / ".incomplete/finished/train"]
    monkeypatch.undo()
    write_shard(shard, job)
    assert os.listdir(tmp_path / ".incomplete/finished/train") == ["data_tfrecord-00000-of-00001"]


def test_a_shard_without_valid_records_is_an_empty_file(tmp_path, make_job):
    job = make_job(tmp_path, [SourceRecord("train", "a", "gone.jpg", "a.json", None, ())])
    write_shard(Shard("train", 0, 1), job)
    assert read_shard_outcome(job, job.shard_outcome_file("train", 0)).num_quarantined == 1
    path = tmp_path / ".incomplete/finished/train/data_tfrecord-00000-of-00001"
    assert list(tf.data.TFRecordDataset(str(path))) == []


def test_too_many_rejects_are_an_error_with_counts_reasons_and_the_first_file(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a", "b", "c"], "val": ["e"]})
    (folder / "JPEGImages/b.jpg").write_bytes(b"")
    message = r"1 of 4 records \(25\.0%\) .*allowed: 20\.0%.*empty_image_file 1.*JPEGImages/b\.jpg"
    with pytest.raises(InputError, match=message) as caught:
        run_ingest(folder, tmp_path / "out", max_reject_fraction=0.2)
    assert json.loads((tmp_path / "out/rejects/report.json").read_text())["error"] == str(caught.value)


def test_corners_instead_of_sizes_are_an_error_with_counts_reasons_and_the_first_box(make_coco, tmp_path, run_ingest):
    images = [{"id": index, "file_name": f"{index}.jpg"} for index in range(3)]
    boxes = [[10, 10, 20, 20], [30, 20, 50, 35], [40, 25, 55, 38]]  # 30 + 50 and 40 + 55 are beyond 60 px
    annotations = [{"image_id": index, "category_id": 3, "bbox": box} for index, box in enumerate(boxes)]
    folder = make_coco({"t.json": (images, annotations)})
    changes = {"format": "coco", "splits": {"train": "t.json"}}
    message = (
        r"2 of 3 boxes \(66\.7%\) .*allowed: 50\.0% \(max_reject_fraction\); "
        r"reasons: box_outside_image 2; the first is t\.json: object 0 \('cat'\): xmin 30, ymin 20, xmax 80"
    )
    with pytest.raises(InputError, match=message):
        run_ingest(folder, tmp_path / "out", max_reject_fraction=0.5, **changes)
    assert run_ingest(folder, tmp_path / "out", max_reject_fraction=0.67, **changes)["num_boxes_rejected"] == 2


def test_boxes_of_rejected_records_are_counted_as_quarantined(make_coco, tmp_path, run_ingest):
    names = ["a.jpg", "a.jpg", "../out.jpg", "gone.jpg", "b.jpg"]
    images = [{"id": index, "file_name": name} for index, name in enumerate(names)]
    annotations = [{"image_id": index, "category_id": 3, "bbox": [1, 2, 3, 4]} for index in (0, 1, 1, 2, 3, 4)]
    folder = make_coco({"t.json": (images, [*annotations, {"image_id": 9}, {"image_id": 4, "category_id": 3}])})
    (folder / "images/gone.jpg").unlink()
    changes = {"format": "coco", "splits": {"train": "t.json"}, "max_reject_fraction": 1.0}
    train = run_ingest(folder, tmp_path / "out", **changes)
    # written: 0, 2 (found by its name) and 4; quarantined: the two boxes of the duplicate, one of the missing image
    assert (train["num_boxes_in"], train["num_boxes_written"], train["num_boxes_rejected"]) == (8, 3, 2)
    assert train["num_boxes_quarantined"] == 3


def test_the_default_splits_are_the_data_sets_own(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a"], "val": ["b"], "trainval": ["a", "b"]})
    report = run_ingest(folder, tmp_path / "out", splits={}, format="auto")
    assert {split: part["num_written"] for split, part in report["splits"].items()} == {"train": 1, "val": 1}
    assert report["data_format"] == "voc"
    assert report["evidence"]


def test_shards_can_be_compressed(make_voc, tmp_path, run_ingest):
    run_ingest(make_voc({"train": ["a"]}), tmp_path / "out", splits={"train": "train"}, gzip=True)
    (path,) = (tmp_path / "out/Split-train").iterdir()
    assert path.name == "data_tfrecord-00000-of-00001.gz"
    assert len(list(tf.data.TFRecordDataset(str(path), "GZIP"))) == 1


def test_with_ratios_records_without_a_split_are_counted_separately(make_voc, tmp_path, run_ingest):
    folder = make_voc({"all": [f"{index:02d}" for index in range(20)]})
    (folder / "Annotations/03.xml").write_text("<broken")
    ratios = {"train": 0.5, "eval": 0.5}
    report = run_ingest(
        folder, tmp_path / "out", splits={}, split_by_ratio=ratios, source="all", max_reject_fraction=0.1
    )
    assert report["splits"]["(none)"]["num_quarantined"] == 1
    assert sum(part["num_in"] for part in report["splits"].values()) == report["num_in"] == 20


def test_several_folders_become_one_data_set_with_unique_keys(make_voc, tmp_path, read_features, without_beam):
    for span in (1, 2):
        make_voc({"train": ["a"]}, {"a": [(f"class{span}", 1, 1, 9, 9)]}, name=f"span-{span}")
    params = ExampleGenParams(format="voc", splits={"train": "train"})
    folders = IngestFolders(str(tmp_path / "out"), str(tmp_path / "out/rejects"))
    report = ingest(tmp_path, params, folders, dict, subfolders=("span-1", "span-2"))
    assert report["num_written"] == 2
    assert report["label_map"] == [[1, "class1"], [2, "class2"]]
    keys_and_files = sorted(
        (feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0], feature[keys.IMAGE_FILENAME].bytes_list.value[0])
        for feature in read_features(tmp_path / "out/Split-train")
    )
    assert keys_and_files == [(b"span-1/a", b"span-1/JPEGImages/a.jpg"), (b"span-2/a", b"span-2/JPEGImages/a.jpg")]


@pytest.mark.parametrize("splits", [{"splits": {"train": "train"}}, {"splits": {}, "split_by_ratio": {"train": 1.0}}])
def test_an_ingestion_between_addresses_equals_a_local_one(
    make_voc, tmp_path, run_ingest, without_beam, google_bucket, splits
):
    folder = make_voc({"train": ["a", "b"]})
    run_ingest(folder, tmp_path / "out", **splits)
    for path in folder.rglob("*"):
        if path.is_file():
            google_bucket.put(f"data/{path.relative_to(folder).as_posix()}", path.read_bytes())
    params = ExampleGenParams(format="voc", **splits)
    ingest("gs://bucket/data", params, IngestFolders("gs://bucket/out", "gs://bucket/out/rejects"), dict)
    contents = google_bucket.contents()
    for name in ("Split-train/data_tfrecord-00000-of-00001", "label_map.pbtxt", "rejects/rejects.jsonl"):
        assert contents[f"out/{name}"] == (tmp_path / "out" / name).read_bytes(), name
    assert "out/rejects/report.json" in contents
    assert not [name for name in contents if name.startswith("out/.incomplete")]


def test_bccd_is_ingested_and_its_two_boxes_without_area_are_rejected(tmp_path, run_ingest):
    default = Path(__file__).parents[4] / "shared/data/bccd"
    folder = Path(os.environ.get("DETLOOM_BCCD", default))
    if not (folder / "Annotations").is_dir():
        pytest.skip(f"no BCCD data at {folder}; set DETLOOM_BCCD")
    report = run_ingest(folder, tmp_path / "out", splits={"train": "train", "eval": "val", "test": "test"})
    assert (report["num_in"], report["num_written"], report["num_quarantined"]) == (364, 364, 0)
    rejects = list(read_rejects(tmp_path / "out/rejects"))
    assert {(reject.reason, reject.file) for reject in rejects} == {
        (Reason.BOX_WITHOUT_AREA, "Annotations/BloodImage_00338.xml"),
        (Reason.BOX_WITHOUT_AREA, "Annotations/BloodImage_00343.xml"),
    }


def test_a_missing_source_keeps_the_output_of_an_earlier_ingestion(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a"]})
    run_ingest(folder, tmp_path / "out", splits={"train": "train"})
    before = read_tree(tmp_path / "out")
    with pytest.raises(InputError, match=r"typo\.txt"):
        run_ingest(folder, tmp_path / "out", splits={"train": "typo"})
    after = read_tree(tmp_path / "out")
    assert {name: data for name, data in after.items() if not name.startswith(".incomplete")} == before


def test_ids_of_several_files_split_together_do_not_collide(make_coco, tmp_path, run_ingest):
    files = {
        f"annotations/{part}.json": ([{"id": index, "file_name": f"{part}/{index}.jpg"} for index in range(20)], [])
        for part in ("train", "val")
    }
    settings = {"format": "coco", "splits": {}, "split_by_ratio": {"a": 0.5, "b": 0.5}, "allow_no_objects": True}
    report = run_ingest(make_coco(files), tmp_path / "out", **settings)
    assert (report["num_written"], report["rejects_by_reason"]) == (40, {})


def test_a_record_keeps_split_and_key_when_a_span_is_added(make_voc, tmp_path, read_features, without_beam):
    for span in (1, 2):
        make_voc({"all": [f"{index:02d}" for index in range(20)]}, name=f"span-{span}")
    ratios = {"split_by_ratio": {"train": 0.5, "eval": 0.5}, "source": "all", "num_spans": 2}
    params = ExampleGenParams(format="voc", **ratios)

    def run_window(name, subfolders):
        folders = IngestFolders(str(tmp_path / name), str(tmp_path / name / "rejects"))
        ingest(tmp_path, params, folders, dict, subfolders=subfolders)
        features = read_features(tmp_path / name / "Split-train")
        return {feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0] for feature in features}

    assert run_window("one", ("span-1",)) < run_window("two", ("span-1", "span-2"))


def test_an_undeclared_class_is_left_out_on_request(make_coco, tmp_path, run_ingest):
    annotations = [{"image_id": 1, "category_id": class_id, "bbox": [1, 2, 3, 4]} for class_id in (3, 99)]
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], annotations)})
    settings = {"format": "coco", "splits": {"train": "t.json"}, "unknown_class": "leave_out"}
    report = run_ingest(folder, tmp_path / "out", **settings)
    assert (report["num_boxes_written"], report["left_out"], report["rejects_by_reason"]) == (1, {"other_class": 1}, {})


@pytest.mark.reliability("concurrent runs", "ingest")
def test_second_ingestion_into_the_same_output_is_refused_with_the_owner(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a"], "val": ["e"]})
    with hold_output(str(tmp_path / "out"), ".ingest.lock", "ingestion"):
        with pytest.raises(FolderBusyError, match=rf"/out: another ingestion .*process {os.getpid()} on "):
            run_ingest(folder, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".ingest.lock"]
    run_ingest(folder, tmp_path / "out")
    assert not (tmp_path / "out/.ingest.lock").exists()


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize("name", ["rejects", "Split-train", "Split-old"])
def test_link_in_place_of_an_output_folder_is_refused_and_its_target_kept(make_voc, tmp_path, run_ingest, name):
    folder = make_voc({"train": ["a"], "val": ["e"]})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file_name in ("report.json", "data_tfrecord-00000-of-00001"):
        (elsewhere / file_name).write_text("mine")
    before = read_tree(elsewhere)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=rf"/out/{name}: this is a link to .*/elsewhere, "):
        run_ingest(folder, tmp_path / "out")
    assert read_tree(elsewhere) == before


@pytest.mark.reliability("hostile input", "ingest")
def test_link_in_place_of_the_staging_folder_is_replaced_and_its_target_kept(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": ["a"], "val": ["e"]})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.incomplete").symlink_to(tmp_path / "elsewhere")
    run_ingest(folder, tmp_path / "out")
    assert read_tree(tmp_path / "elsewhere") == {"file": b"mine"}


def test_class_names_that_look_the_same_are_reported(make_voc, tmp_path, run_ingest, caplog):
    names = ["Cat", "cat", "caf\u00e9", "cafe\u0301", "stop sign", "stopsign", "dog"]  # two Unicode forms of one word
    folder = make_voc({"train": ["a"], "val": ["e"]}, {"a": [(name, 1, 1, 9, 9) for name in names]})
    report = run_ingest(folder, tmp_path / "out")
    groups = [["Cat", "cat"], ["cafe\u0301", "caf\u00e9"], ["stop sign", "stopsign"]]  # in the order of the label map
    assert report["similar_class_names"] == groups
    assert r"'cafe\u0301', 'caf\xe9' are different classes" in caplog.text


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("voc", "overlap"),
        ("voc/out", "overlap"),
        (".", "overlap"),
        ("voc.txt/out", r"voc\.txt .*folder"),
        ("locked", "/locked: cannot be used as the output"),
    ],
)
def test_an_output_that_cannot_be_used_is_an_error(make_voc, tmp_path, run_ingest, output, message):
    folder = make_voc({"train": ["a"], "val": ["e"]})
    (tmp_path / "voc.txt").write_text("")
    (tmp_path / "locked/.ingest.lock").mkdir(parents=True)
    with pytest.raises(InputError, match=message):
        run_ingest(folder, tmp_path / output)
    assert (folder / "JPEGImages/a.jpg").is_file()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_reject_fraction": 1.0}, r"voc: split 'eval' \(val\) is empty.*missing_file 1"),
        (
            {"splits": {}, "split_by_ratio": {"train": 0.999999, "eval": 0.000001}, "source": "train"},
            r"split 'eval' .*1 records",
        ),
    ],
)
def test_an_empty_split_is_an_error_naming_split_and_source(make_voc, tmp_path, run_ingest, settings, message):
    folder = make_voc({"train": ["a"], "val": ["b"]})
    (folder / "JPEGImages/b.jpg").unlink()
    with pytest.raises(InputError, match=message):
        run_ingest(folder, tmp_path / "out", **settings)
