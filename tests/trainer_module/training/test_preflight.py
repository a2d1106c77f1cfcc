import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.ground_truth import TRAINING_COLUMNS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import EarlyStopping, Eval, TrainEvalConfig
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.one_stage.detector import SsdDetector
from detloom.trainer_module.detectors.one_stage.family import SsdFamily
from detloom.trainer_module.training.preflight import (
    RecordSample,
    SampledRecord,
    check_classes,
    check_metrics,
    check_optional_columns,
    check_records,
    preflight,
    sample_records,
)

BOX = (0.1, 0.1, 0.5, 0.5)
LABEL_MAP = LabelMap(((1, "red"), (2, "green")))
Write = Callable[[str, list[bytes]], str]


@pytest.fixture
def write(tmp_path: Path, write_records: Callable[[Path, list[bytes]], Path]) -> Write:
    def write_file(name: str, records: list[bytes]) -> str:
        return str(write_records(tmp_path / name, records))

    return write_file


def config(**train: object) -> TrainEvalConfig:
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    return replace(preset, train=replace(preset.train, **{"batch_size": 1, **train}))


def network(num_outputs: int = 3) -> keras.Model:
    """Return a network with a detector's output names; by default for two classes and background."""
    image = keras.Input((8, 8, 3))
    logits, offsets = keras.layers.Conv2D(num_outputs, 1)(image), keras.layers.Conv2D(4, 1)(image)
    return keras.Model(image, {"class_logits_BAC": logits, "offsets_BA4": offsets})


def detector(num_outputs: int = 3) -> SsdDetector:
    return SsdDetector(SsdFamily(config().model), LABEL_MAP, network(num_outputs), tf.zeros([64, 4]))


def record(class_ids: tuple[int, ...], class_texts: tuple[str, ...] = ()) -> SampledRecord:
    texts = tuple(text.encode() for text in class_texts)
    return SampledRecord("data: record 0 (img_7)", 100, class_ids, texts, num_boxes=max(len(class_ids), len(texts)))


def whole(*records: SampledRecord) -> RecordSample:
    return RecordSample(records, is_whole_split=True)


def with_texts(example: bytes, *texts: str) -> bytes:
    message = tf.train.Example.FromString(example)
    message.features.feature[keys.CLASS_TEXT].bytes_list.value.extend(text.encode() for text in texts)
    return message.SerializeToString()


# --- classes of configuration and network ---------------------------------------------------------------------------


def test_heads_for_another_label_map_are_refused():
    check_classes(SsdFamily(find_preset("efficientdet_d0").config.model), LABEL_MAP, network(2))  # without background
    with pytest.raises(InputError, match="got 4 class outputs, allowed: 3 "):
        check_classes(SsdFamily(config().model), LABEL_MAP, network(4))


def test_metric_of_an_unknown_class_is_refused():
    best = replace(config(), eval=Eval(best_metric="AP/blue"))
    with pytest.raises(InputError, match=r"eval\.best_metric: got the class 'blue', allowed: .* red, green\."):
        check_metrics(best, LABEL_MAP)
    stopping = config(early_stopping=EarlyStopping(metric="AP/blue"))
    with pytest.raises(InputError, match=r"train\.early_stopping\.metric: got the class 'blue'"):
        check_metrics(stopping, LABEL_MAP)
    known = config(early_stopping=EarlyStopping(metric="loss"))
    check_metrics(replace(known, eval=Eval(best_metric="AP/green")), LABEL_MAP)


# --- classes of the data --------------------------------------------------------------------------------------------


MANY = LabelMap.from_names([f"class {i}" for i in range(90)])


@pytest.mark.parametrize(
    ("ids", "texts", "label_map", "message"),
    [
        ((1, 3), (), LABEL_MAP, r"^data: record 0 \(img_7\): got class id 3, allowed: .* 1, 2;"),
        ((0, 1), (), LABEL_MAP, r"got class id 0, .*background"),
        ((91,), (), MANY, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 80 more"),
        ((1, 2), ("green", "red"), LABEL_MAP, "got class id 1 .*'green'.* 1 is 'red' and 'green' is 2"),
    ],
)
def test_classes_that_the_label_map_lacks_are_refused_with_their_record(ids, texts, label_map, message):
    with pytest.raises(InputError, match=message):
        check_records(whole(record(ids, texts)), ClassLookup(label_map), 1)


@pytest.mark.parametrize(
    ("records", "is_whole", "warning"),
    [
        ([record((1, 2), ("red", "green")), record((1,))], True, None),
        ([record((1, 2), ("/m/06ntj", "green"))], True, "/m/06ntj"),
        ([record((), ("green", "red"))], True, None),
        ([record((1, 1))], True, "no box of green"),
        ([record((1, 1))], False, None),  # a part of the split may lack a class
        ([record(())], True, "no box in"),
        ([record(())], False, "first 1 records"),
    ],
)
def test_unusual_classes_give_a_warning(records, is_whole, warning):
    warnings = check_records(RecordSample(tuple(records), is_whole_split=is_whole), ClassLookup(LABEL_MAP), 1)
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_boxes_of_other_classes_are_dropped_on_request_with_a_warning():
    """As in the Object Detection API, also for a known id with an unknown text."""
    sample = whole(record((1, 2, 9), ("", "truck", "red")), record((7, 1, 2)))
    (warning,) = check_records(sample, ClassLookup(LABEL_MAP, "drop"), 1)
    assert "2 of 6 boxes" in warning
    assert "truck" in warning


@pytest.mark.parametrize(("classes", "is_warned"), [([1, 2], True), ([1, 1], False), ([1, None], False)])
def test_files_with_classes_of_their_own_give_a_warning(write, make_example, classes, is_warned):
    """None: both classes in turn."""
    files = [
        write(f"{number}", [make_example([BOX], [class_id or 1 + i % 2]) for i in range(6)])
        for number, class_id in enumerate(classes)
    ]
    warnings = check_records(sample_records(files), ClassLookup(LABEL_MAP), 1)
    assert any("classes of its own" in warning for warning in warnings) is is_warned


# --- the sample -----------------------------------------------------------------------------------------------------


def test_record_is_read_with_key_ids_and_texts(write, make_example):
    example = with_texts(make_example([BOX, BOX], [1, 2], name="img_7"), "red", "green")
    file = write("data", [example])
    (sampled,) = sample_records([file]).records
    texts = (b"red", b"green")
    where = f"{file}: record 0 (img_7)"
    assert sampled == SampledRecord(where, len(example), (1, 2), texts, num_without_mask=2, num_boxes=2, file=file)


def test_sample_has_the_first_records_of_each_shard(write, make_example):
    files = [write(f"data-{i}", [make_example([BOX], name=f"{i}{j}") for j in range(5)]) for i in range(2)]
    sample = sample_records(files, max_records=4)
    names = [record.where.split("(")[1][:-1] for record in sample.records]
    assert names == ["00", "01", "10", "11"]
    assert not sample.is_whole_split
    assert sample_records(files, max_records=10).is_whole_split
    one_each = sample_records(files, max_records=1)  # opens at most so many shards
    assert (len(one_each.records), one_each.is_whole_split) == (1, False)


def test_mean_size_of_records(write, make_example):
    examples = [make_example([BOX]), make_example([BOX] * 50)]
    assert sample_records([write("data", examples)]).mean_bytes == sum(map(len, examples)) / 2
    assert sample_records([write("empty", [])]).mean_bytes == 0


@pytest.mark.reliability("hostile input", "train")
def test_invalid_record_is_refused_with_its_position(write, make_example):
    file = write("data", [make_example([BOX]), b"\xff\xff\xff"])
    with pytest.raises(InputError, match="data: record 1 "):
        sample_records([file])


@pytest.mark.reliability("torn file", "train")
def test_truncated_file_is_refused_with_the_position(write, make_example):
    file = Path(write("data", [make_example([BOX])] * 2))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="data: record 1 "):
        sample_records([str(file)])


# --- preflight ------------------------------------------------------------------------------------------------------


def test_valid_setup_gives_no_warning_and_logs_the_memory_estimate(write, make_example, caplog):
    file = write("data", [make_example([BOX, BOX], [1, 2])])
    with caplog.at_level(logging.INFO, logger="detloom"):
        assert preflight(config(), LABEL_MAP, detector(), [file]) == ()
    (line,) = [entry.getMessage() for entry in caplog.records if entry.name == "detloom"]
    assert line.startswith("Memory")
    assert "batch size 1" in line


def test_warnings_of_configuration_and_data_are_combined(write, make_example):
    file = write("data", [make_example([BOX])])
    scaled = config(learning_rate_batch_size=128)
    warnings = preflight(scaled, LABEL_MAP, detector(), [file])
    assert [warning.split(":")[0] for warning in warnings][1:] == ["Training data"]
    assert warnings[0].startswith("train.batch_size is 1, but the learning rate was written for 128")


def test_missing_training_files_are_refused():
    with pytest.raises(InputError, match="nowhere"):
        preflight(config(), LABEL_MAP, detector(), ["nowhere/*"])


# --- masks and keypoints --------------------------------------------------------------------------------------------


class PointsAndMasks(SsdFamily):
    """A family that learns masks, and two keypoints of the class "green"."""

    ground_truth_columns = (*TRAINING_COLUMNS, "masks_GHW", "keypoints_yx_rel_GP2")
    keypoints = Keypoints("green", ("left", "right"), (0.05, 0.05))


MASK = np.ones((64, 64), np.uint8)
POINTS = [(0.5, 0.5, 2), (0.2, 0.2, 0), (0.3, 0.3, 1)]
# Good data, then a record that is not, and the message.
OPTIONAL = {
    "masks": (
        [{"class_ids": [1, 1], "crowds": [0, 1], "masks": [MASK, None]}],
        {"class_ids": [1, 1], "masks": [MASK, None]},
        r"1 of its 2 boxes have no mask.*data\.masks: true",
    ),
    "keypoints": (
        [{"class_ids": [1], "masks": [MASK]}],
        {"class_ids": [2], "masks": [MASK]},
        r"no keypoints.*'green'.*data\.keypoints: true",
    ),
    "number of keypoints": (
        [{"class_ids": [1], "masks": [MASK], "keypoints": [POINTS]}],
        {"class_ids": [1, 2], "masks": [MASK, MASK], "keypoints": [[], POINTS]},
        r"'green' has 3 keypoints, allowed: 0 or 2.*keypoint_label_to_std",
    ),
}


@pytest.mark.parametrize(("good", "bad", "message"), OPTIONAL.values(), ids=OPTIONAL)
def test_data_without_the_optional_columns_of_the_detector_are_rejected(write, make_example, good, bad, message):
    family = PointsAndMasks(config().model)
    examples = [make_example([BOX] * len(row["class_ids"]), **row, name="good") for row in good]
    wrong = make_example([BOX] * len(bad["class_ids"]), **bad, name="img_7")
    check_optional_columns(sample_records([write("good", examples)]), family, LABEL_MAP)
    with pytest.raises(InputError, match=f"img_7.*{message}"):
        check_optional_columns(sample_records([write("bad", [*examples, wrong])]), family, LABEL_MAP)
    check_optional_columns(sample_records([write("bad", [wrong])]), SsdFamily(config().model), LABEL_MAP)


def test_keypoints_in_one_of_the_records_are_enough(write, make_example):
    pointed = make_example([BOX], [2], masks=[MASK], keypoints=[POINTS[:2]])
    without = make_example([BOX], [2], masks=[MASK])
    sample = sample_records([write("data", [without, pointed])])
    check_optional_columns(sample, PointsAndMasks(config().model), LABEL_MAP)
