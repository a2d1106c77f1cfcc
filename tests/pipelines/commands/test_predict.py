import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import detloom_command
from PIL import Image

from detloom.pipelines.predict import image_files, predict_files
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference import choose_runtime

ROOT = Path(__file__).parents[3]
RED_LINE = "red 0.900  left 40 top 10 right 60 bottom 20"
GREEN_LINE = "green 0.800  left 0 top 30 right 20 bottom 40"


def write_image(path, *, has_red=True, has_green=True, orientation=None):
    """Write 40 x 80 pixels: red in rows 10 to 20, columns 40 to 60, and green in rows 30 to 40, columns 0 to 20."""
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:20, 40:60] = (255 * has_red, 0, 0)
    image[30:40, 0:20] = (0, 255 * has_green, 0)
    image, more = Image.fromarray(image), {}
    if orientation == 6:  # stored rotated to the left; viewers rotate it back
        exif = Image.Exif()
        exif[0x0112] = orientation
        image, more = image.transpose(Image.Transpose.ROTATE_90), {"exif": exif}
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"quality": 100, "subsampling": 0} if path.suffix == ".jpg" else {}), **more)
    return path


@pytest.fixture
def photos(tmp_path):
    """Write three images in folders, one of them broken, and a text file."""
    write_image(tmp_path / "photos" / "a.png")
    write_image(tmp_path / "photos" / "deep" / "b.PNG", has_green=False)
    broken = write_image(tmp_path / "photos" / "deep" / "c.png")
    broken.write_bytes(broken.read_bytes()[:60])
    (tmp_path / "photos" / "notes.txt").write_text("x")
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def runtime(tiny_model_dir):
    return choose_runtime.load_runtime(tiny_model_dir)


@pytest.fixture
def predict(tiny_model_dir, runtime, monkeypatch):
    monkeypatch.setattr(choose_runtime, "load_runtime", lambda *_: runtime)

    return functools.partial(detloom_command, "predict", "--model", tiny_model_dir)


def rows_of(path):
    return [(row["image_id"], row["category_id"], row["bbox"]) for row in json.loads(path.read_text())]


def test_one_image_prints_one_line_per_object(predict, tmp_path):
    result = predict(write_image(tmp_path / "a.png"))
    assert (result.exit_code, result.stdout.splitlines()) == (0, [RED_LINE, GREEN_LINE])


def test_one_image_is_drawn_into_the_output_file_or_under_its_name_into_a_folder(predict, tmp_path):
    (tmp_path / "out").mkdir()
    for output, drawn in (("boxes.jpg", "boxes.jpg"), ("out", "out/a.png")):
        result = predict(write_image(tmp_path / "a.png"), "--output", tmp_path / output, "--min-score", 0.85)
        assert result.stdout.splitlines() == [RED_LINE]
        with Image.open(tmp_path / drawn) as image:
            assert (image.format, image.size) == ("JPEG" if output == drawn else "PNG", (80, 40))


def test_an_image_is_rotated_by_its_exif_orientation(predict, tmp_path):
    result = predict(write_image(tmp_path / "a.jpg", orientation=6))
    assert result.stdout.splitlines() == [RED_LINE, GREEN_LINE]


def test_score_of_the_model_card_is_the_default(predict, tiny_model_dir, tmp_path):
    card = tiny_model_dir / "assets.extra" / "model_card.json"
    card.parent.mkdir()
    card.write_text('{"evaluation": {"best_f1": {"min_score": 0.85}}}')
    image = write_image(tmp_path / "a.png")
    assert predict(image).stdout.splitlines() == [RED_LINE]
    assert predict(image, "--min-score", 0.5).stdout.splitlines() == [RED_LINE, GREEN_LINE]
    shutil.rmtree(card.parent)


def test_without_an_object_the_best_score_is_printed(predict, tmp_path, photos):
    for what in (write_image(tmp_path / "a.png"), photos):
        result = predict(what, "--min-score", 0.95)
        assert "0.900" in result.stderr
        assert "--min-score" in result.stderr
    assert "--min-score" not in predict(write_image(tmp_path / "a.png")).stderr


@pytest.mark.parametrize(
    ("what", "output", "message"),
    [
        ("a.png", "a.png", "overwritten"),
        ("a.png", "boxes.xyz", r"boxes\.xyz: .*\.xyz"),
        ("deep/c.png", "boxes.png", "c.png: truncated PNG"),
    ],
)
def test_one_image_that_cannot_be_read_or_written_is_an_error(predict, photos, what, output, message):
    before = {path: path.read_bytes() for path in photos.rglob("*.*")}
    with pytest.raises(InputError, match=message):
        raise predict(photos / what, "--output", photos / output).exception
    assert {path: path.read_bytes() for path in photos.rglob("*.*")} == before


def test_broken_images_are_reported_and_an_error_with_strict_or_if_there_are_no_others(predict, photos):
    result = predict(photos)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"a.png: {RED_LINE}", f"a.png: {GREEN_LINE}", f"deep/b.PNG: {RED_LINE}"]
    assert "skipped: " in result.stderr
    assert "deep/c.png: truncated PNG" in result.stderr
    counts = "3 objects with a score of at least 0.5 (red 2, green 1) in 2 images; 1 more could not be read"
    assert counts in result.stderr
    assert predict(photos, "--strict").exit_code == 1
    (photos / "a.png").unlink()
    (photos / "deep" / "b.PNG").unlink()
    result = predict(photos)
    assert (result.exit_code, "c.png: truncated PNG" in result.stderr) == (1, True)


def test_images_of_other_formats_are_counted_as_skipped(predict, photos, tmp_path):
    for name in ("d.webp", "deep/e.TIF"):
        (photos / name).write_bytes(b"x")
    result = predict(photos, photos / "deep")
    assert "skipped: 2 images that are neither JPEG nor PNG (d.webp, deep/e.TIF)" in result.stderr
    assert "3 more could not be read" in result.stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.bmp").write_bytes(b"x")
    with pytest.raises(InputError, match=r"1 images of other formats \(a\.bmp\)"):
        raise predict(tmp_path / "other").exception


def test_detections_are_written_as_a_table_and_as_yolo_labels(predict, photos, tmp_path):
    result = predict(photos, "--csv", tmp_path / "found.csv", "--yolo", tmp_path / "labels")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "found.csv").read_text().splitlines() == [
        "image,class_id,class,score,xmin,ymin,xmax,ymax",
        "a.png,1,red,0.9000,40.0,10.0,60.0,20.0",
        "a.png,2,green,0.8000,0.0,30.0,20.0,40.0",
        "deep/b.PNG,1,red,0.9000,40.0,10.0,60.0,20.0",
    ]
    texts = {str(path.relative_to(tmp_path / "labels")): path.read_text() for path in tmp_path.rglob("labels/**/*.txt")}
    red = "0 0.625000 0.375000 0.250000 0.250000\n"  # centre (50, 15), size 20 x 10 of 80 x 40
    assert texts.pop("classes.txt").splitlines()[:2] == ["red", "green"]
    assert texts == {"a.txt": red + "1 0.125000 0.875000 0.250000 0.250000\n", "deep/b.txt": red}


def test_two_images_with_one_label_file_are_refused(predict, tmp_path):
    images = [write_image(tmp_path / "photos" / name) for name in ("a.png", "a.jpg")]
    with pytest.raises(InputError, match=r"--yolo: .*a\.\w+ .*a\.\w+ .*same label file"):
        raise predict(*images, "--yolo", tmp_path / "labels").exception


def test_labels_that_exist_are_not_overwritten(predict, photos, tmp_path):
    (tmp_path / "classes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"--yolo: .*classes.txt exists already"):
        raise predict(photos, "--yolo", tmp_path).exception
    assert (tmp_path / "classes.txt").read_text() == "mine"


def test_images_keep_their_relative_paths_in_the_output(predict, photos):
    for _ in range(2):  # images in the output folder are not sources
        result = predict(photos, "--output", photos / "boxes")
        assert result.stdout == ""
        assert "in 2 images" in result.stderr
    written = sorted(path.relative_to(photos / "boxes").as_posix() for path in (photos / "boxes").rglob("*.*"))
    assert written == ["a.png", "deep/b.PNG"]


def test_an_output_folder_equal_to_the_source_is_refused(predict, photos):
    before = (photos / "a.png").read_bytes()
    assert "output folder" in str(predict(photos, "--output", photos).exception)
    assert (photos / "a.png").read_bytes() == before


def test_coco_results_contain_all_scores_and_pixel_boxes_with_any_batch_size(predict, photos, tmp_path):
    for size in (1, 2, 8):
        predict(photos, "--json", tmp_path / f"{size}.json", "--batch-size", size)
    assert (tmp_path / "1.json").read_text() == (tmp_path / "2.json").read_text() == (tmp_path / "8.json").read_text()
    # x, y, width, height of red: 40, 10, 60 - 40, 20 - 10; of green: 0, 30, 20 - 0, 40 - 30.
    red, green = [40.0, 10.0, 20.0, 10.0], [0.0, 30.0, 20.0, 10.0]
    assert rows_of(tmp_path / "1.json") == [(1, 1, red), (1, 2, green), (2, 1, red)]
    described = json.loads((tmp_path / "1.images.json").read_text())
    assert described["images"] == [
        {"id": 1, "file_name": "a.png", "height": 40, "width": 80},
        {"id": 2, "file_name": "deep/b.PNG", "height": 40, "width": 80},
    ]
    assert described["categories"] == [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}]


def test_a_given_minimum_score_applies_to_coco_results(predict, photos, tmp_path):
    predict(photos, "--json", tmp_path / "found.json", "--min-score", 0.85)
    assert [row[:2] for row in rows_of(tmp_path / "found.json")] == [(1, 1), (2, 1)]


def write_ground_truth(path, images, categories=((1, "red"), (2, "green"), (3, "blue"))):
    rows = [{"id": i, "file_name": name, "height": h, "width": w} for i, name, h, w in images]
    annotations = [{"id": 1, "image_id": images[0][0], "category_id": 1, "bbox": [40, 10, 20, 10], "iscrowd": 0}]
    named = [{"id": class_id, "name": name} for class_id, name in categories]
    path.write_text(json.dumps({"images": rows, "annotations": annotations, "categories": named}))
    return path


def test_image_ids_come_from_the_ground_truth(predict, photos, tmp_path):
    images = [(70, "photos/a.png", 40, 80), (50, "deep/b.PNG", 40, 80), (60, "deep/c.png", 40, 80)]
    truth = write_ground_truth(tmp_path / "labels.json", images)
    found = tmp_path / "found.json"
    result = predict(photos, "--json", found, "--ground-truth", truth)
    next_line = f"Next: detloom evaluate --detections {found} --ground-truth {truth}"
    assert result.stderr.splitlines()[-1] == next_line
    assert [row[:2] for row in rows_of(found)] == [(70, 1), (70, 2), (50, 1)]
    assert not (tmp_path / "found.images.json").exists()
    files = ("--detections", found, "--ground-truth", truth)
    result = detloom_command("evaluate", *files, "--out", tmp_path / "evaluation")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("images", "categories", "message"),
    [
        ([(1, "a.png", 40, 80)], None, r"lacks 2 of 3 images \(deep/b.PNG, deep/c.png\)"),
        ([(1, "a.png", 40, 80)], [(1, "rot"), (2, "green")], "1 is 'rot'.*'red'"),
        ([(1, "a.png", 40, 80)], [(1, "red")], "2 is missing.*'green'"),
    ],
)
def test_ground_truth_of_other_images_or_classes_is_refused(predict, photos, tmp_path, images, categories, message):
    more = {"categories": categories} if categories else {}
    truth = write_ground_truth(tmp_path / "labels.json", images, **more)
    with pytest.raises(InputError, match=message):
        raise predict(photos, "--json", tmp_path / "found.json", "--ground-truth", truth).exception
    assert not (tmp_path / "found.json").exists()


def test_two_images_never_match_the_same_ground_truth(predict, tmp_path):
    for folder in "ab":
        write_image(tmp_path / "photos" / folder / "x.png")
    truth = write_ground_truth(tmp_path / "labels.json", [(1, "x.png", 40, 80)])
    result = predict(tmp_path / "photos", "--json", tmp_path / "found.json", "--ground-truth", truth)
    assert "lacks 1 of 2 images (b/x.png)" in str(result.exception)


def test_labels_in_stored_orientation_use_the_stored_image(predict, tmp_path):
    path = write_image(tmp_path / "a.jpg", orientation=6)  # stored 80 high and 40 wide
    for height, width, left in ((80, 40, 10), (40, 80, 40)):
        truth = write_ground_truth(tmp_path / "labels.json", [(1, "a.jpg", height, width)])
        predict(path, "--json", tmp_path / "found.json", "--ground-truth", truth)
        assert round(rows_of(tmp_path / "found.json")[0][2][0]) == left


def test_an_image_whose_size_differs_from_its_labels_is_refused(predict, tmp_path):
    truth = write_ground_truth(tmp_path / "labels.json", [(1, "a.png", 30, 80)])
    path = write_image(tmp_path / "a.png")
    result = predict(path, "--json", tmp_path / "found.json", "--ground-truth", truth)
    assert "a.png: got 80 x 40 pixels, but the annotations say 80 x 30." in str(result.exception)


def test_results_that_cannot_be_written_leave_nothing(predict, photos, tmp_path, monkeypatch):
    def fail(*_):
        raise InputError("no room")

    monkeypatch.setattr(predict_files, "save_image", fail)
    predict(photos, "--json", tmp_path / "found.json", "--output", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def names_of(*sources, **options):
    return [image.name for image in image_files.find_images([str(source) for source in sources], **options)]


def test_an_image_given_twice_is_used_once(photos):
    assert names_of(photos, photos / "a.png") == ["a.png", "deep/b.PNG", "deep/c.png"]


def test_two_images_with_one_name_are_refused(tmp_path):
    paths = [write_image(tmp_path / folder / "x.png") for folder in "ab"]
    with pytest.raises(InputError, match=r"x.png and .*x.png"):
        names_of(*paths)


@pytest.mark.parametrize("source", ["nowhere", "x" * 5000, "empty"])
def test_missing_sources_are_refused(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no such file or folder|no images|cannot be read"):
        names_of(source)


def test_a_link_out_of_a_folder_is_not_followed(photos, tmp_path):
    (photos / "deep" / "out.png").symlink_to(write_image(tmp_path / "secret.png"))
    (image,) = [each for each in image_files.find_images([str(photos)]) if each.name == "deep/out.png"]
    with pytest.raises(InputError, match=r"deep/out\.png: the image cannot be read"):
        image.read()


def test_a_link_given_directly_is_followed(tmp_path):
    (tmp_path / "link.png").symlink_to(write_image(tmp_path / "elsewhere" / "x.png"))
    (image,) = image_files.find_images([str(tmp_path / "link.png")])
    assert image.read()[1] == 3200


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_another_runtime_detects_without_tensorflow(runtime, tiny_model_dir, tmp_path):
    for package in ("onnx", runtime):
        pytest.importorskip(package, reason=f"pip install {package}")
    from tiny_onnx import write_tiny_onnx

    model = shutil.copytree(tiny_model_dir, tmp_path / "1")
    write_tiny_onnx(model)
    Image.new("RGB", (100, 50), (255, 255, 255)).save(tmp_path / "a.png")  # a score of 1
    code = (
        "import atexit, sys; atexit.register(lambda: print('tensorflow' in sys.modules))\n"
        "from detloom.pipelines.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "predict", tmp_path / "a.png", "--model", tmp_path, "--runtime", runtime]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # ymin 0.1, xmin 0.2, ymax 0.3, xmax 0.4 of 50 x 100 pixels
    assert done.stdout.splitlines() == ["red 1.000  left 20 top 5 right 40 bottom 15", "False"]
