import io
import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.lite.tools import flatbuffer_utils

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.export.tflite_export import export_tflite
from detloom.trainer_module.export.tflite_metadata import read_packed_files
from detloom.trainer_module.export.tflite_quantization import RangesError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.tflite_runtime import TfliteRuntime

LABEL_MAP = LabelMap(((2, "cat"), (5, "guide\ndog")))
COLUMNS = (names.BOXES, names.SCORES, names.CLASSES)


def detect_in_memory(detector, serialized):
    encoded = tf.train.Example.FromString(serialized).features.feature["image/encoded"].bytes_list.value[0]
    prepared, true_hw = family_of(detector.config).preprocessing.prepare(tf.io.decode_image(encoded))
    outputs = detector.detect(prepared[tf.newaxis], true_hw[tf.newaxis])
    count = int(outputs[names.NUM_DETECTIONS][0])
    return columns_of({name: value[0, :count].numpy() for name, value in outputs.items() if name in COLUMNS})


def columns_of(rows):
    """Boxes, scores and class ids."""
    return tuple(rows[name] for name in COLUMNS)


def share_found_again(expected, found, tolerance=1e-3, min_rows=4):
    """Return the share of detections in memory that have an equal class, score and box in the file."""
    rows = [np.column_stack([boxes, scores, classes]) for boxes, scores, classes in (expected, found)]
    assert len(rows[0]) >= min_rows
    return float(np.mean((np.abs(rows[0][:, None] - rows[1][None]).max(axis=-1) <= tolerance).any(axis=1)))


@pytest.fixture(scope="module")
def examples(make_example):
    boxes = [(0.1, 0.1, 0.5, 0.6), (0.4, 0.3, 0.9, 0.9), (0.0, 0.7, 0.3, 1.0)]
    sizes = [(64, 64), (90, 130), (150, 70)]
    return [make_example(boxes, [1, 2, 3], image_hw=hw, name=f"img_{hw[0]}") for hw in sizes]


@pytest.fixture(scope="module")
def exported(tiny_config, tmp_path_factory, make_spread_detector):
    folder = tmp_path_factory.mktemp("tflite") / "Format-TFLite"
    detector = make_spread_detector(tiny_config.model, LABEL_MAP)
    settings = Export(tflite=("float32", "float16"), tflite_max_detections=10)
    export_tflite(detector, tiny_config, settings, [], folder)
    return detector, folder


def detect(path, examples):
    """Return the detections of a TFLite file in the image of each serialized tf.Example."""
    return TfliteRuntime(str(path)).detect([EncodedImage(ExampleFeatures(each).image_bytes) for each in examples])


def test_float_files_equal_the_model_in_memory(exported, examples):
    detector, folder = exported
    for variant, tolerance in (("float32", 1e-3), ("float16", 0.02)):
        rows = detect(folder / f"{variant}.tflite", examples)
        for serialized, found in zip(examples, map(columns_of, rows), strict=True):
            assert share_found_again(detect_in_memory(detector, serialized), found, tolerance) >= 0.9
            assert set(found[2]) <= {2, 5}


@pytest.mark.slow  # two conversions in other processes
def test_the_8_bit_file_takes_unchanged_colors_and_a_diverged_model_is_refused(
    exported, tiny_config, examples, tmp_path, write_records, make_spread_detector
):
    """TensorFlow's quantization would end the process of the diverged model."""
    detector, folder = exported
    shard = write_records(tmp_path / "data_tfrecord-00000-of-00001", examples)
    settings = Export(tflite=("int8",), tflite_max_detections=10, tflite_calibration_images=3)
    (path,) = export_tflite(detector, tiny_config, settings, [str(shard)], tmp_path / "good")
    interpreter = tf.lite.Interpreter(str(path))
    (details,) = interpreter.get_signature_runner("serving_default").get_input_details().values()
    assert details["dtype"] is np.uint8
    scale, zero_point = details["quantization"]
    assert (scale, zero_point) == (pytest.approx(1.0, abs=1e-4), 0)
    boxes, scores, class_ids = columns_of(detect(path, examples)[0])
    assert len(boxes) == len(scores) == len(class_ids) > 0
    assert path.stat().st_size < (folder / "float32.tflite").stat().st_size

    detector = make_spread_detector(tiny_config.model, LABEL_MAP)
    for variable in detector.network.trainable_variables:
        if "head" in variable.path:
            variable.assign(tf.fill(variable.shape, 3e38))
    with pytest.raises(RangesError, match=r"int8 .* crashed \(error: .*scale.*\)\. .* raise train"):
        export_tflite(detector, tiny_config, settings, [str(shard)], tmp_path / "bad")
    assert sorted(path.name for path in tmp_path.iterdir()) == [Path(shard).name, "good"]


def test_metadata_labels_configuration_and_contract_are_in_the_file(exported):
    model = flatbuffer_utils.read_model(str(exported[1] / "float32.tflite"))
    (entry,) = (each for each in model.metadata if each.name == b"TFLITE_METADATA")
    data = bytes(model.buffers[entry.buffer].data)
    assert data[4:8] == b"M001"
    assert b"labelmap.txt" in data
    files = read_packed_files((exported[1] / "float16.tflite").read_bytes())
    assert files["labelmap.txt"].splitlines() == ["???", "???", "cat", "???", "???", "guide dog"]
    contract = json.loads(files[names.ASSET_CONTRACT])
    assert (contract["input"]["height"], contract["input"]["padding_rgb"]) == (64, [127.5] * 3)
    expected = [names.BOXES, names.CLASSES, names.SCORES, names.NUM_DETECTIONS]
    assert list(contract["outputs"]) == expected
    assert names.ASSET_CONFIG in files
    interpreter = tf.lite.Interpreter(str(exported[1] / "float16.tflite"))
    shapes = [details["shape"].tolist() for details in interpreter.get_output_details()]
    assert shapes == [[1, 10, 4], [1, 10], [1, 10], [1]]
    by_name = interpreter.get_signature_runner("serving_default").get_output_details()
    in_order = [by_name[name]["name"] for name in expected]
    assert [details["name"] for details in interpreter.get_output_details()] == in_order


@pytest.mark.parametrize("size_wh", [(64, 64), (130, 90)])
def test_the_page_s_code_detects_what_detloom_does(exported, tiny_config, size_wh, tmp_path, monkeypatch, capsys):
    """Run the block of docs/export.md."""
    _, folder = exported
    lite = tmp_path / "lite/Format-TFLite"
    shutil.copytree(folder, lite)
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (5, 6, 3), np.uint8)
    Image.fromarray(pixels).resize(size_wh, Image.Resampling.BICUBIC).save("photo.jpg", quality=95)
    page = (
        (Path(__file__).parents[3] / "docs/export.md").read_text().replace("0.3", "0.01")
    )  # the network is not trained
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})
    (rows,) = TfliteRuntime(str(lite / "float16.tflite")).detect([EncodedImage(Path("photo.jpg").read_bytes())])
    expected = [rows[names.SCORES][0], *rows[names.BOXES][0]]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == pytest.approx(len(rows[names.SCORES]), abs=1)
    np.testing.assert_allclose(numbers_of(lines[0]), expected, atol=0.02)


def numbers_of(line):
    """Return score, ymin, xmin, ymax and xmax of a line that begins with a name."""
    return [float(word) for word in line.split()[-5:]]


@pytest.mark.slow  # another conversion
def test_raw_outputs_are_suppressed_like_those_of_the_saved_model(
    tiny_config, examples, changed, tmp_path, make_spread_detector
):
    resizer = KeepAspectRatioResizer(min_dimension=64, max_dimension=64, pad_to_max_dimension=True)
    config = changed(
        tiny_config,
        {"model.image_resizer": resizer, "model.post_processing.batch_non_max_suppression.soft_nms_sigma": 0.5},
    )
    detector = make_spread_detector(config.model, LABEL_MAP)
    settings = Export(tflite=("float32",), tflite_outputs="raw")
    (path,) = export_tflite(detector, config, settings, [], tmp_path / "lite")
    for serialized, found in zip(examples, map(columns_of, detect(path, examples)), strict=True):
        assert share_found_again(detect_in_memory(detector, serialized), found) >= 0.9


@pytest.mark.slow  # another conversion
def test_boxes_in_the_padding_are_left_out_like_in_the_saved_model(
    tiny_config, examples, changed, tmp_path, make_spread_detector
):
    resizer = KeepAspectRatioResizer(min_dimension=64, max_dimension=64, pad_to_max_dimension=True)
    config = changed(tiny_config, {"model.image_resizer": resizer})
    detector = make_spread_detector(config.model, LABEL_MAP)
    (path,) = export_tflite(detector, config, Export(tflite=("float32",)), [], tmp_path / "lite")
    for serialized, rows in zip(examples, detect(path, examples), strict=True):
        boxes, scores, class_ids = columns_of(rows)
        assert ((boxes[:, 2:] - boxes[:, :2]) > 0).all()
        expected = detect_in_memory(detector, serialized)
        best = tuple(column[:3] for column in (boxes, scores, class_ids))
        assert share_found_again(tuple(column[:10] for column in expected), best, min_rows=1) >= 0.2


@pytest.mark.reliability("hostile input", "evaluate")
def test_compressed_or_damaged_packed_files_are_refused(exported, tmp_path):
    whole = (exported[1] / "float32.tflite").read_bytes()
    packed = io.BytesIO(whole)
    with zipfile.ZipFile(packed, "a", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.txt", "a" * 1000)
    deep = io.BytesIO(whole[: whole.index(b"PK\x03\x04")])
    with zipfile.ZipFile(deep, "a") as archive:
        archive.writestr(names.ASSET_CONFIG, "[" * 200_000)
        archive.writestr(names.ASSET_LABEL_MAP, "")
    for number, data in enumerate((packed.getvalue(), deep.getvalue())):
        (tmp_path / f"{number}.tflite").write_bytes(data)
        with pytest.raises(InputError, match=rf"{number}.tflite: "):
            TfliteRuntime(str(tmp_path / f"{number}.tflite"))


def test_soft_suppression_gives_a_warning_and_a_conversion_that_fails_leaves_no_folder(
    tiny_config, changed, tmp_path, caplog, make_spread_detector
):
    config = changed(tiny_config, {"model.post_processing.batch_non_max_suppression.soft_nms_sigma": 0.5})
    detector = make_spread_detector(config.model, LABEL_MAP)
    with pytest.raises(InputError, match="int8 needs images of the training split"):
        export_tflite(detector, config, Export(tflite=("int8",)), [], tmp_path / "lite")
    assert not (tmp_path / "lite").exists()
    assert "soft" in caplog.text
    assert "0.6" in caplog.text


@pytest.mark.nightly
def test_center_net_is_converted_with_its_decoding(
    center_net_configs, tiny_config, examples, tmp_path, make_spread_detector
):
    model = center_net_configs["resnet50"]
    config = replace(tiny_config, model=model)
    detector = make_spread_detector(model, LABEL_MAP)
    encoded = tf.train.Example.FromString(examples[0]).features.feature["image/encoded"].bytes_list.value[0]
    prepared, _ = family_of(model).preprocessing.prepare(tf.io.decode_image(encoded))
    logits = detector.network(prepared[tf.newaxis], training=False)["class_logits_BHWK"].numpy()
    head = detector.network.get_layer("head_classes")
    head.kernel.assign(head.kernel / logits.std())  # so that no score is rounded to 1, where all are equal
    (path,) = export_tflite(detector, config, Export(tflite=("float32",), tflite_max_detections=20), [], tmp_path / "a")
    found = columns_of(detect(path, examples[:1])[0])
    expected = detect_in_memory(detector, examples[0])
    # A square image has no padding. In padding the SavedModel does not look for peaks; the file does.
    assert len(found[0]) == len(expected[0]) == 20
    assert share_found_again(expected, found) >= 0.9


def test_unsupported_conversions_are_refused_before_training(center_net_configs, tiny_config, changed):
    no_overlap = changed(tiny_config, {"model.post_processing.batch_non_max_suppression.iou_threshold": 0.0}).model
    with pytest.raises(FieldError, match=r"needs an iou_threshold above 0"):
        no_overlap.check_export(Export(tflite=("float32",)))
    center_net = center_net_configs["resnet50"]
    with pytest.raises(FieldError, match=r"export\.tflite: got 'int8'"):
        center_net.check_export(Export(tflite=("int8",)))
    with pytest.raises(FieldError, match=r"export\.tflite_outputs: got 'raw'"):
        tiny_config.model.check_export(Export(tflite=("int8",), tflite_outputs="raw"))
    center_net.check_export(Export())
    center_net.check_export(Export(tflite=("float16",)))
    find_preset("efficientdet_d0").config.model.check_export(Export(tflite=("int8",)))
