"""The public functions: images of any kind, and the same results as the commands."""

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import detloom
from detloom.components.fingerprints import source_fingerprint
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.reading.typed_dict import from_json
from detloom.schemas.run_file import Gates
from detloom.schemas.run_file.read_run_file import read_run_file

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"


@pytest.fixture(scope="module")
def detector(tiny_model_dir):
    return detloom.load_detector(str(tiny_model_dir.parent))  # the folder of versions


@pytest.fixture(scope="module")
def image_rgb():
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:20, 40:60] = (255, 0, 0)
    return image


def encode(image_rgb, kind="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(image_rgb).save(buffer, kind, **options)
    return buffer.getvalue()


def test_images_of_all_kinds_give_the_same_detections(detector, image_rgb, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encode(image_rgb))
    kinds = [path, str(path), encode(image_rgb), Image.fromarray(image_rgb), image_rgb, np.asfortranarray(image_rgb)]
    for found in [*detector.predict(kinds), *(detector.predict(kind) for kind in kinds)]:
        assert found.class_names == ("red",)
        assert found.boxes_yxyx_px.tolist() == [[10, 40, 20, 60]]
        np.testing.assert_array_equal(found.image_rgb, image_rgb)


def test_a_prediction_is_short_text_and_an_image_in_a_notebook(detector, image_rgb):
    found = detector.predict(image_rgb)
    assert repr(found) == "Prediction(80 x 40 px, 1 detections: red 1; scores 0.900 to 0.900)"
    assert repr(found.above(0.95)) == "Prediction(80 x 40 px, 0 detections)"
    with Image.open(io.BytesIO(found._repr_png_())) as shown:
        assert (shown.format, shown.size) == ("PNG", (80, 40))


def test_the_recommended_score_is_that_of_the_commands(tiny_model_dir, detector):
    assert detector.recommended_score == 0.5
    card = tiny_model_dir / "assets.extra/model_card.json"
    card.parent.mkdir()
    card.write_text('{"evaluation": {"best_f1": {"min_score": 0.8517}}}')
    assert detector.recommended_score == 0.851
    shutil.rmtree(card.parent)


def test_batches_keep_their_order_and_images_may_be_gray_or_transparent(detector, image_rgb):
    found = detector.predict((image_rgb, np.zeros_like(image_rgb), image_rgb), batch_size=2)
    assert [len(each.scores) for each in found] == [1, 0, 1]
    assert detector.predict([]) == []
    gray = detector.predict(image_rgb[..., 0])
    assert (gray.image_rgb.shape, len(gray.scores)) == ((40, 80, 3), 0)
    assert detector.predict(Image.fromarray(image_rgb).convert("RGBA")).class_names == ("red",)


def test_a_file_with_an_exif_orientation_is_turned_upright(detector, image_rgb, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    path = tmp_path / "turned.jpg"
    path.write_bytes(encode(image_rgb, "JPEG", exif=exif))
    for found in (detector.predict(path), detector.predict(path.read_bytes())):
        assert found.image_rgb.shape == (80, 40, 3)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((8, 8, 3), np.float32), r"images\[1\]: got an array float32 \[8, 8, 3\]"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"images\[1\]: got an array uint8 \[2, 8, 8, 3\]"),
        (np.zeros((0, 8, 3), np.uint8), r"images\[1\]: the array \[0, 8, 3\]"),
        (b"no image", r"images\[1\]: "),
        (17, r"images\[1\]: got int"),
        ("/no/such/file.jpg", r"/no/such/file\.jpg: "),
    ],
)
def test_an_image_that_cannot_be_used_is_named(detector, image_rgb, image, message):
    with pytest.raises(detloom.InputError, match=message):
        detector.predict([image_rgb, image])


def test_a_header_of_a_huge_image_is_refused_before_decoding(detector):
    header = bytearray(encode(np.zeros((1, 1, 3), np.uint8)))
    header[16:24] = (100_000).to_bytes(4, "big") * 2
    with pytest.raises(detloom.InputError, match="image: "):
        detector.predict(bytes(header))


def test_detections_become_coco_rows_and_a_drawing(detector, image_rgb):
    found = detector.predict(image_rgb)
    (row,) = found.to_coco(image_id=7)
    assert (row["image_id"], row["category_id"]) == (7, 1)
    assert row["bbox"] == [40, 10, 20, 10]  # left, top, width, height
    assert row["score"] == pytest.approx(0.9)
    json.dumps(row)
    assert found.draw().size == (80, 40)
    assert (found.masks_NHW, found.keypoints_yx_rel, found.keypoint_scores) == (None, None, None)
    assert detector.label_map.names == ("red", "green")


@pytest.fixture
def examples(tmp_path, make_example, write_records):
    """Write a split whose red areas the model detects."""
    from detloom.schemas.contracts.label_map import LabelMap, write_label_map

    box = (0.25, 0.25, 0.75, 0.75)
    records = [make_example([box], [1], name=f"img_{number}") for number in range(3)]
    write_records(tmp_path / "examples/Split-eval/data_tfrecord-00000-of-00001", records)
    write_label_map(tmp_path / "examples/label_map.pbtxt", LabelMap.from_names(["red", "green"]))
    return tmp_path / "examples"


def test_evaluate_returns_metrics_and_the_decision_and_writes_the_report(tiny_model_dir, examples, tmp_path):
    gates = Gates(no_floor_reason="Three images.")
    result = detloom.evaluate(tiny_model_dir, examples, out=tmp_path / "out", gates=gates)
    assert pytest.approx(1.0) == result.candidate.coco.AP
    assert result.decision.sentence
    assert (tmp_path / "out" / "report.html").is_file()


def test_run_reads_the_run_file_with_overrides(small_run, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "detloom.pipelines.local.run_local.run_locally", lambda run, verbose: ran.append((run, verbose)) or "summary"
    )
    workspace = tmp_path / "elsewhere"
    assert detloom.run(small_run, workspace=workspace, overrides={"train.seed": 9}, verbose=True) == "summary"
    ((run, verbose),) = ran
    assert (run.train.seed, run.workspace, verbose) == (9, str(workspace), True)
    assert run.data == read_run_file(small_run).data


def test_an_override_that_does_not_exist_and_a_folder_without_versions_are_named(small_run, tmp_path):
    with pytest.raises(detloom.InputError, match=r"overrides\['train\.sead'\]"):
        detloom.run(small_run, overrides={"train.sead": 9})
    with pytest.raises(detloom.InputError, match=f"{tmp_path}: "):
        detloom.load_detector(tmp_path)


def test_the_settings_of_tfxs_trainer_hold_configuration_code_and_label_map(examples):
    label_map = examples / "label_map.pbtxt"
    settings = detloom.trainer_config(PRESET, overrides={"train.seed": 3}, label_map=label_map, strategy="mirrored")
    assert from_json(TrainEvalConfig, settings["trainer_config"]).train.seed == 3
    assert from_json(Strategy, settings["strategy"]) == Strategy(kind="mirrored")
    assert settings["code_fingerprint"] == source_fingerprint("detloom.trainer_module")
    assert settings["label_map"] == label_map.read_text()


def test_the_input_of_a_preset_is_that_of_its_network():
    found = detloom.model_input(PRESET, overrides={"train_input.max_number_of_boxes": 7})
    assert "320 x 320" in found.describe()
    assert found.anchor_generator is not None
    assert found.max_boxes == 7


def test_train_trains_on_the_splits_of_the_examples(examples, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "detloom.trainer_module.train_and_export.train_and_export",
        lambda *args, **options: calls.append((args, options)) or ("result", None),
    )
    run_dir = tmp_path / "run"
    overrides = {"train.num_steps": 30}
    assert detloom.train(PRESET, examples, run_dir, train_split="eval", overrides=overrides, export=False) == "result"
    ((config, label_map, train_files, eval_files, out, strategy), options) = calls[0]
    assert (config.train.num_steps, label_map.names, out, strategy) == (30, ("red", "green"), run_dir, None)
    assert train_files == eval_files == (str(examples / "Split-eval/data_tfrecord-00000-of-00001"),)
    assert options == {"export": False}
