"""Run files for configurations of the Object Detection API, with its TFRecords, label maps and checkpoints."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from apache_beam.testing import test_pipeline
from command_line import detloom_command, sentence
from labelled_data import encode_image

from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams
from detloom.pipelines.check_config import check_config
from detloom.pipelines.init.from_pipeline_config import name_of_config, write_migration
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import RunFile

LABEL_MAP = "item { id: 1 name: 'cat' }\nitem { id: 2 name: 'dog' }\n"
READERS = """
train_input_reader { label_map_path: "data/label_map.pbtxt" tf_record_input_reader { input_path: "data/train.record" } }
eval_input_reader { label_map_path: "data/label_map.pbtxt" tf_record_input_reader { input_path: "data/val.record" } }
"""


def encode_example(number: int, class_ids: tuple[int, ...] = (1, 2)) -> bytes:
    """Return an example in the layout of the Object Detection API's dataset tools."""
    names = {1: b"cat", 2: b"dog"}
    values = {
        "image/height": [40],
        "image/width": [60],
        "image/filename": [b"%d.jpg" % number],
        "image/source_id": [b"%d.jpg" % number],
        "image/key/sha256": [b"%064d" % number],
        "image/encoded": [encode_image(number)],
        "image/format": [b"jpeg"],
        "image/object/bbox/xmin": [0.1] * len(class_ids),
        "image/object/bbox/xmax": [0.5] * len(class_ids),
        "image/object/bbox/ymin": [0.25] * len(class_ids),
        "image/object/bbox/ymax": [0.75] * len(class_ids),
        "image/object/class/text": [names[each] for each in class_ids],
        "image/object/class/label": list(class_ids),
    }
    example = tf.train.Example()
    for key, column in values.items():
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(column[0])]
        getattr(example.features.feature[key], kind).value.extend(column)
    return example.SerializeToString()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_records: Callable[..., Path]) -> Path:
    """Return the current folder of a project: records in data/, a checkpoint, and models/pets/pipeline.config."""
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "data/train.record", [encode_example(number) for number in range(3)])
    write_records(tmp_path / "data/val.record", [encode_example(7, (2,))])
    (tmp_path / "data/label_map.pbtxt").write_text(LABEL_MAP)
    write_config(tmp_path)
    return tmp_path


def format_preset(name: str) -> str:
    """Return a preset as a pipeline.config without input readers."""
    text = format_pipeline_config(find_preset(name).config)
    return re.sub(r"^(train|eval)_input_reader .*?^}$", "", text, flags=re.MULTILINE | re.DOTALL)


def write_config(project: Path, readers: str = READERS, checkpoint: str = "weights/ckpt-0", extra: str = "") -> Path:
    text = format_preset("ssd_mobilenet_v2_fpnlite_320x320")
    train = f'fine_tune_checkpoint: "{checkpoint}" fine_tune_checkpoint_version: V2 {extra}'
    path = project / "models/pets/pipeline.config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\nmodel {{ ssd {{ num_classes: 2 }} }}\ntrain_config {{ {train} }}\n{readers}")
    (project / "weights").mkdir(exist_ok=True)
    (project / "weights/ckpt-0.index").touch()
    return path


@pytest.fixture
def migrate(project: Path) -> Callable[..., tuple[RunFile, tuple[str, ...]]]:
    """Return a function that writes a run file for the project's configuration and reads it back."""

    def migrate(**given: object) -> tuple[RunFile, tuple[str, ...]]:
        decisions = write_migration(project / "models/pets/pipeline.config", project / "pets.yaml", "pets", **given)
        check = check_config(str(project / "pets.yaml"))
        assert (check.verdict, check.error) == ("loads", "")
        return read_run_file(project / "pets.yaml"), decisions

    return migrate


# --- the usual project ------------------------------------------------------------------------------------------------


def test_paths_relative_to_the_current_folder_are_found(migrate, project):
    run, _ = migrate()
    assert run.data.path == str(project / "data")
    splits = run.data.splits
    assert (splits.train, splits.eval, splits.test) == ("train.record", "val.record", "val.record")
    assert run.detector == "models/pets/pipeline.config"
    assert run.train.fine_tune_checkpoint == str(project / "weights/ckpt-0")
    assert run.model.num_classes == 2


def test_the_run_file_ingests_the_records(migrate, project):
    run, _ = migrate()
    out = project / "examples"
    params = ExampleGenParams.from_run_file(run.data, 5)
    report = ingest(run.data.path, params, IngestFolders(str(out), str(out / "rejects")), test_pipeline.TestPipeline)
    assert (report["num_written"], report["num_quarantined"]) == (5, 0)  # 3 train, 1 eval, the same as test
    assert report["splits"]["train"]["boxes_by_class"] == {"cat": 3, "dog": 3}
    assert read_label_map(out / "label_map.pbtxt").names == ("cat", "dog")


def test_the_run_file_begins_with_the_decisions(migrate, project):
    _, decisions = migrate()
    lines = (project / "pets.yaml").read_text().splitlines()
    comments = " ".join(line.removeprefix("# ") for line in lines)
    assert comments.startswith("Written by `detloom init --from-odapi` for ")
    assert [each for each in decisions if each.startswith("data.splits.test")]
    assert all(f"- {each}" in comments for each in decisions)


def test_paths_relative_to_the_configuration_are_found(migrate, project, monkeypatch):
    (project / "data").rename(project / "models/pets/data")
    (project / "weights").rename(project / "models/pets/weights")
    monkeypatch.chdir("/")
    run, _ = migrate()
    assert run.data.path == str(project / "models/pets/data")
    assert run.train.fine_tune_checkpoint == str(project / "models/pets/weights/ckpt-0")


def test_a_name_comes_from_the_folder_of_a_pipeline_config():
    assert name_of_config(Path("models/My SSD/pipeline.config")) == "my-ssd"
    assert name_of_config(Path("models/pets_v2.config")) == "pets-v2"


def test_the_command_names_the_next_step_and_replaces_a_file_only_with_force(project):
    arguments = ("init", "--from-odapi", "models/pets/pipeline.config")
    result = detloom_command(*arguments)
    assert result.exit_code == 0, result.output
    assert "Wrote pets.yaml." in result.output
    assert "- data.splits.test is the evaluation split" in result.output
    assert result.output.endswith("Next: detloom run pets.yaml\n")
    (project / "pets.yaml").write_text("mine")
    assert "pets.yaml: exists already" in sentence(detloom_command(*arguments))
    assert (project / "pets.yaml").read_text() == "mine"
    assert detloom_command(*arguments, "--force").exit_code == 0
    assert (project / "pets.yaml").read_text() != "mine"


# --- refusals ---------------------------------------------------------------------------------------------------------

MORE = '["data/train.record", "data/more.record"]'
REFUSED = [
    (lambda _: READERS.replace('"data/train.record"', MORE), r"train_input_reader\.input_path: 2 patterns"),
    (lambda project: replace_file(project / "data/train.record", b"\x1f\x8b" + bytes(30)), r"train\.record: .*GZIP"),
    (lambda project: replace_file(project / "data/label_map.pbtxt"), r"label map of the records to \S+/data/label_map"),
    (lambda project: write_other_label_map(project), r"data/label_map\.pbtxt, which differs"),
    *((lambda _, path=path: label_map_at(path), path) for path in ("/dev/zero", "/dev/null", "data")),
]


def replace_file(path: Path, content: bytes | None = None) -> str:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    return READERS


def label_map_at(path: str) -> str:
    return READERS.replace("data/label_map.pbtxt", path)


def write_other_label_map(project: Path) -> str:
    (project / "other.pbtxt").write_text(LABEL_MAP.replace("dog", "cow"))
    return label_map_at("other.pbtxt")


@pytest.mark.parametrize(("prepare", "message"), REFUSED)
def test_unusable_records_and_label_maps_are_refused(migrate, project, prepare, message):
    write_config(project, prepare(project))
    with pytest.raises(InputError, match=message):
        migrate()
    assert not (project / "pets.yaml").exists()


def test_refused_fields_and_a_folder_without_records_stop_the_migration(migrate, project):
    (project / "empty").mkdir()
    with pytest.raises(InputError, match=r"--records: .*empty has no train\.record .*it has no file"):
        migrate(records=project / "empty")
    write_config(project, extra="merge_multiple_label_boxes: true")
    with pytest.raises(InputError, match="merge_multiple_label_boxes"):
        migrate()


# --- records ----------------------------------------------------------------------------------------------------------


def test_shards_in_two_folders_beside_each_other(migrate, project, write_records):
    for name in ("train", "val"):
        write_records(project / f"parts/{name}/pets.record-00000-of-00001", [encode_example(len(name))])
    (project / "parts/label_map.pbtxt").write_text(LABEL_MAP)
    readers = READERS.replace("data/train.record", "parts/train/pets.record-?????-of-00001")
    readers = readers.replace("data/val.record", "parts/val/pets.record-?????-of-00001").replace("data/", "parts/")
    write_config(project, readers)
    run, _ = migrate()
    assert run.data.path == str(project / "parts")
    assert run.data.splits.eval == "val/pets.record-?????-of-00001"


@pytest.mark.parametrize("readers", [READERS.splitlines()[1], READERS.replace("val.record", "train.record")])
def test_without_evaluation_records_the_training_records_are_split(migrate, project, readers):
    write_config(project, readers)
    run, decisions = migrate()
    assert run.data.split_by_ratio.source == "train.record"
    assert any("data.split_by_ratio" in each for each in decisions)


ELSEWHERE = {
    "gs://bucket/data/": "an address, which ingestion on this machine does not read",
    "PATH_TO_BE_CONFIGURED/": "the placeholder of the detection zoo",
    "/nowhere/": "'/nowhere/train.record', which does not exist;",
    "nowhere/": "which does not exist (searched in ",
}


@pytest.mark.parametrize(("folder", "reason"), ELSEWHERE.items())
def test_records_that_are_elsewhere(migrate, project, folder, reason):
    path = write_config(project, READERS.replace("data/", folder), checkpoint="gone/ckpt-1")
    with pytest.raises(InputError) as caught:
        migrate()
    line = next(
        i for i, text in enumerate(path.read_text().splitlines(), 1) if "train_input_reader" in text and folder in text
    )
    assert f"{path}:{line}: train_input_reader.input_path: got" in str(caught.value)
    assert reason in str(caught.value)
    assert "--records" in str(caught.value)
    assert "'gone/ckpt-1', which does not exist" in str(caught.value)  # all problems at once
    assert not (project / "pets.yaml").exists()
    run, _ = migrate(records=project / "data", checkpoint="")
    assert (run.data.splits.train, run.data.splits.eval) == ("train.record", "val.record")


def test_records_with_other_names_are_found_by_their_split(migrate, project):
    write_config(project, READERS.replace("data/train", "PATH_TO_BE_CONFIGURED/coco_1").replace("data/val", "x/coco_2"))
    run, decisions = migrate(records=project / "data")
    assert (run.data.splits.train, run.data.splits.eval) == ("train.record", "val.record")
    assert any("train_input_reader" in each and "train.record is used" in each for each in decisions)


def test_records_in_distant_folders(migrate, project, write_records):
    write_records(project / "a/b/c/train.record", [encode_example(1)])
    write_config(project, READERS.replace("data/train.record", "a/b/c/train.record"))
    with pytest.raises(InputError, match=r"ln -s \S+/a/b/c records/train && ln -s \S+/data records/eval"):
        migrate()
    (project / "records").mkdir()
    (project / "records/train").symlink_to(project / "a/b/c")
    (project / "records/eval").symlink_to(project / "data")
    (project / "records/label_map.pbtxt").write_text(LABEL_MAP)
    run, _ = migrate(records=project / "records")
    assert run.data.splits.train == "train/train.record"


# --- label map --------------------------------------------------------------------------------------------------------


def test_a_label_map_elsewhere_has_to_be_copied(migrate, project):
    (project / "labels").mkdir()
    (project / "data/label_map.pbtxt").rename(project / "labels/pets.txt")
    write_config(project, label_map_at("labels/pets.txt"))
    with pytest.raises(InputError, match=r"cp (\S+/labels/pets\.txt) (\S+/data/label_map\.pbtxt)") as caught:
        migrate()
    assert "ingestion reads one beside the records" in str(caught.value)
    (project / "data/label_map.pbtxt").write_bytes((project / "labels/pets.txt").read_bytes())
    migrate()


def test_a_label_map_with_gaps_sets_the_number_of_classes(migrate, project):
    (project / "data/label_map.pbtxt").write_text(LABEL_MAP + "item { id: 90 name: 'cow' }\n")
    run, _ = migrate()
    assert run.model.num_classes == 3
    assert "the configuration has 2" in (project / "pets.yaml").read_text()


# --- checkpoint and settings ------------------------------------------------------------------------------------------


def test_another_checkpoint_is_restored_by_its_content(migrate, project):
    write_config(project, extra='fine_tune_checkpoint_type: "classification"')
    assert migrate()[0].train.fine_tune_checkpoint_type == "classification"
    run, _ = migrate(checkpoint="imagenet")
    assert (run.train.fine_tune_checkpoint, run.train.fine_tune_checkpoint_type) == ("imagenet", "auto")


def test_an_address_is_kept(migrate, project):
    write_config(project, checkpoint="gs://bucket/ckpt-0")
    assert migrate()[0].train.fine_tune_checkpoint == "gs://bucket/ckpt-0"
    run, decisions = migrate(checkpoint="https://host/model.tar.gz")
    assert run.train.fine_tune_checkpoint == "https://host/model.tar.gz"
    assert any("#sha256" in each for each in decisions)


def test_settings_that_only_tf1_used_are_named(migrate, project):
    write_config(project, extra='freeze_variables: "^backbone/"')
    assert any("train.freeze_variables has an effect" in each for each in migrate()[1])


def test_a_detector_of_masks_reads_masks(migrate, project):
    text = format_preset("mask_rcnn_inception_resnet_v2_1024x1024")
    (project / "models/pets/pipeline.config").write_text(f"{text}\n{READERS}")
    assert migrate()[0].data.masks


@pytest.mark.parametrize("start", ["centernet_resnet50_v2_512x512_kpts", "mask_rcnn", "ssd_efficientdet_d0"])
def test_unchanged_files_of_the_zoo_convert(reference_dir, project, start):
    (path,) = (reference_dir / "zoo_configs").glob(f"{start}*.config")
    write_migration(path, project / "zoo.yaml", name_of_config(path), project / "data", "")
    check = check_config(str(project / "zoo.yaml"))
    assert (check.verdict, check.error, check.not_trained) == ("loads", "", ())
