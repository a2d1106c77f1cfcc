import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.schemas.config import EarlyStopping, Eval, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.presets import find_preset
from detloom.trainer_module.preflight import (
    RecordSample,
    SampledRecord,
    check_classes,
    check_metrics,
    check_records,
    preflight,
    sample_records,
)
from detloom.trainer_module.ssd import SsdDetector

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
    """With the names of a detector's outputs; by default for two classes and background."""
    image = keras.Input((8, 8, 3))
    logits, offsets = keras.layers.Conv2D(num_outputs, 1)(image), keras.layers.Conv2D(4, 1)(image)
    return keras.Model(image, {"class_logits_BAC": logits, "offsets_BA4": offsets})


def detector(num_outputs: int = 3) -> SsdDetector:
    return SsdDetector(config().model, LABEL_MAP, network(num_outputs), tf.zeros([64, 4]))


def record(class_ids: tuple[int, ...], class_texts: tuple[str, ...] = ()) -> SampledRecord:
    return SampledRecord("data: record 0 (img_7)", 100, class_ids, class_texts)


def whole(*records: SampledRecord) -> RecordSample:
    return RecordSample(records, is_whole_split=True)


def with_texts(example: bytes, *texts: str) -> bytes:
    message = tf.train.Example.FromString(example)
    message.features.feature[keys.CLASS_TEXT].bytes_list.value.extend(text.encode() for text in texts)
    return message.SerializeToString()


# --- classes of configuration and network ---------------------------------------------------------------------------


def test_heads_of_another_label_map_are_refused():
    with pytest.raises(InputError, match=r"got 4 class outputs, allowed: 3 \(2 classes of the label map and backgr"):
        check_classes(config().model, LABEL_MAP, network(4))


def test_heads_without_background_have_one_output_a_class():
    model = find_preset("efficientdet_d0").config.model
    check_classes(model, LABEL_MAP, network(2))


def test_the_metric_of_a_class_that_the_label_map_lacks_is_refused():
    best = replace(config(), eval=Eval(best_metric="AP/blue"))
    with pytest.raises(InputError, match=r"eval\.best_metric: got the class 'blue', allowed: .* red, green\."):
        check_metrics(best, LABEL_MAP)
    stopping = config(early_stopping=EarlyStopping(metric="AP/blue"))
    with pytest.raises(InputError, match=r"train\.early_stopping\.metric: got the class 'blue'"):
        check_metrics(stopping, LABEL_MAP)


def test_metrics_of_known_classes_and_of_all_are_accepted():
    stopping = config(early_stopping=EarlyStopping(metric="loss"))
    check_metrics(replace(stopping, eval=Eval(best_metric="AP/green")), LABEL_MAP)


# --- classes of the data --------------------------------------------------------------------------------------------


def test_a_class_id_that_the_label_map_lacks_is_refused_with_its_record():
    message = r"^data: record 0 \(img_7\): got class id 3, allowed: the label map's 1, 2; train with"
    with pytest.raises(InputError, match=message):
        check_records(whole(record((1, 3))), LABEL_MAP)


def test_ids_that_start_at_0_are_explained():
    with pytest.raises(InputError, match=r"got class id 0, .* Ids start at 1: 0 is background"):
        check_records(whole(record((0, 1))), LABEL_MAP)


def test_ids_of_a_large_label_map_are_cut_short():
    label_map = LabelMap.from_names([f"class {i}" for i in range(90)])
    with pytest.raises(InputError, match="the label map's 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 80 more"):
        check_records(whole(record((91,))), label_map)


def test_a_class_text_that_is_another_ids_name_is_refused():
    message = "got class id 1 with the text 'green', but in the label map 1 is 'red' and 'green' is 2"
    with pytest.raises(InputError, match=message):
        check_records(whole(record((1, 2), ("green", "red"))), LABEL_MAP)


def test_class_texts_of_other_names_are_only_warned_of():
    (warning,) = check_records(whole(record((1, 2), ("/m/06ntj", "green"))), LABEL_MAP)
    assert "class texts that the label map lacks: /m/06ntj;" in warning


def test_data_that_agree_give_no_warning():
    assert check_records(whole(record((1, 2), ("red", "green")), record((1,))), LABEL_MAP) == ()


def test_a_class_without_a_box_in_the_whole_split_is_warned_of():
    (warning,) = check_records(whole(record((1, 1))), LABEL_MAP)
    assert "no box of green in the whole training split" in warning


def test_a_class_without_a_box_in_a_part_of_the_split_is_not():
    assert check_records(RecordSample((record((1, 1)),), is_whole_split=False), LABEL_MAP) == ()


def test_no_box_at_all_is_warned_of():
    assert "no box in the training split" in check_records(whole(record(())), LABEL_MAP)[0]
    part = RecordSample((record(()),), is_whole_split=False)
    assert "no box in its first 1 records" in check_records(part, LABEL_MAP)[0]


# --- the sample -----------------------------------------------------------------------------------------------------


def test_a_record_is_read_with_its_key_ids_and_texts(write, make_example):
    example = with_texts(make_example([BOX, BOX], [1, 2], name="img_7"), "red", "green")
    file = write("data", [example])
    (sampled,) = sample_records([file]).records
    assert sampled == SampledRecord(f"{file}: record 0 (img_7)", len(example), (1, 2), ("red", "green"))


def test_a_record_without_boxes_has_no_classes(write, make_example):
    (sampled,) = sample_records([write("data", [make_example()])]).records
    assert sampled.class_ids == ()


def test_each_shard_gives_its_first_records(write, make_example):
    files = [write(f"data-{i}", [make_example([BOX], name=f"{i}{j}") for j in range(5)]) for i in range(2)]
    sample = sample_records(files, max_records=4)
    names = [record.where.split("(")[1][:-1] for record in sample.records]
    assert names == ["00", "01", "10", "11"]
    assert not sample.is_whole_split


def test_shards_that_are_read_to_the_end_are_the_whole_split(write, make_example):
    files = [write(f"data-{i}", [make_example([BOX])] * 2) for i in range(2)]
    assert sample_records(files, max_records=4).is_whole_split


def test_more_shards_than_records_are_not_all_opened(write, make_example):
    files = [write(f"data-{i}", [make_example([BOX])]) for i in range(3)]
    sample = sample_records(files, max_records=2)
    assert len(sample.records) == 2
    assert not sample.is_whole_split


def test_the_mean_size_of_records(write, make_example):
    examples = [make_example([BOX]), make_example([BOX] * 50)]
    assert sample_records([write("data", examples)]).mean_bytes == sum(map(len, examples)) / 2
    assert sample_records([write("empty", [])]).mean_bytes == 0


def test_a_record_that_is_no_example_is_refused_with_its_place(write, make_example):
    file = write("data", [make_example([BOX]), b"\xff\xff\xff"])
    with pytest.raises(InputError, match=r"data: record 1 is no tf\.Example"):
        sample_records([file])


def test_a_file_cut_short_is_refused_with_the_place(write, make_example):
    file = Path(write("data", [make_example([BOX])] * 2))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"data: record 1 cannot be read \(.*\); write the file again"):
        sample_records([str(file)])


# --- all together ---------------------------------------------------------------------------------------------------


def test_what_is_sound_gives_no_warning_and_one_log_line_about_memory(write, make_example, caplog):
    file = write("data", [make_example([BOX, BOX], [1, 2])])
    with caplog.at_level(logging.INFO, logger="detloom"):
        assert preflight(config(), LABEL_MAP, detector(), [file]) == ()
    (line,) = [entry.getMessage() for entry in caplog.records if entry.name == "detloom"]
    assert line.startswith("Memory: about ")
    assert "at batch size 1" in line


def test_warnings_of_configuration_and_data_come_together(write, make_example):
    file = write("data", [make_example([BOX])])
    scaled = config(learning_rate_batch_size=128)
    warnings = preflight(scaled, LABEL_MAP, detector(), [file])
    assert [warning.split(":")[0] for warning in warnings][1:] == ["Training data"]
    assert warnings[0].startswith("train.batch_size is 1, but the learning rate was written for 128")


def test_no_training_files_are_refused():
    with pytest.raises(InputError, match="no TFRecord file matches"):
        preflight(config(), LABEL_MAP, detector(), ["nowhere/*"])
