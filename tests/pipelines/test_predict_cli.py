import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from detloom.pipelines import image_files, predict_files
from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError

_SPEC = importlib.util.spec_from_file_location(
    "tiny_detector", Path(__file__).parents[1] / "components" / "evaluator" / "tiny_detector.py"
)
tiny_detector = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny_detector)

RED_LINE = "red 0.900  left 40 top 10 right 60 bottom 20"
GREEN_LINE = "green 0.800  left 0 top 30 right 20 bottom 40"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "export")


def write_picture(path, *, has_red=True, has_green=True, orientation=None):
    """40 x 80 pixels: red in rows 10 to 20 and columns 40 to 60, green in rows 30 to 40 and columns 0 to 20."""
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:20, 40:60] = (255 * has_red, 0, 0)
    image[30:40, 0:20] = (0, 255 * has_green, 0)
    picture, more = Image.fromarray(image), {}
    if orientation == 6:  # stored turned to the left; viewers turn it back
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture, more = picture.transpose(Image.Transpose.ROTATE_90), {"exif": exif}
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **({"quality": 100, "subsampling": 0} if path.suffix == ".jpg" else {}), **more)
    return path


@pytest.fixture
def photos(tmp_path):
    """Three pictures in folders, one of them broken, and a text."""
    write_picture(tmp_path / "photos" / "a.png")
    write_picture(tmp_path / "photos" / "deep" / "b.PNG", has_green=False)
    broken = write_picture(tmp_path / "photos" / "deep" / "c.png")
    broken.write_bytes(broken.read_bytes()[:60])
    (tmp_path / "photos" / "notes.txt").write_text("x")
    return tmp_path / "photos"


@pytest.fixture
def predict(model_dir):
    def run(*arguments):
        return CliRunner().invoke(cli, ["predict", "--model", str(model_dir), *map(str, arguments)])

    return run


def rows_of(path):
    return [(row["image_id"], row["category_id"], row["bbox"]) for row in json.loads(path.read_text())]


def test_one_picture_is_a_line_an_object(predict, tmp_path):
    result = predict(write_picture(tmp_path / "a.png"))
    assert (result.exit_code, result.stdout.splitlines()) == (0, [RED_LINE, GREEN_LINE])


def test_one_picture_is_drawn_into_the_file_that_is_named(predict, tmp_path):
    result = predict(write_picture(tmp_path / "a.png"), "--output", tmp_path / "boxes.jpg", "--min-score", 0.85)
    assert result.stdout.splitlines() == [RED_LINE]
    with Image.open(tmp_path / "boxes.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (80, 40))


def test_one_picture_is_drawn_into_a_folder_under_its_name(predict, tmp_path):
    (tmp_path / "out").mkdir()
    predict(write_picture(tmp_path / "a.png"), "--output", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.png"]


def test_a_picture_that_is_turned_by_its_exif_data_is_looked_at_upright(predict, tmp_path):
    result = predict(write_picture(tmp_path / "a.jpg", orientation=6))
    assert result.stdout.splitlines() == [RED_LINE, GREEN_LINE]


def test_one_broken_picture_is_an_error(predict, photos):
    result = predict(photos / "deep" / "c.png")
    assert result.exit_code == 1
    assert "c.png: truncated PNG" in str(result.exception)


def test_a_picture_is_not_drawn_over_itself(predict, tmp_path):
    path = write_picture(tmp_path / "a.png")
    before = path.read_bytes()
    result = predict(path, "--output", path)
    assert "is the picture itself" in str(result.exception)
    assert path.read_bytes() == before


def test_a_name_that_is_of_no_picture_format_is_refused(predict, tmp_path):
    result = predict(write_picture(tmp_path / "a.png"), "--output", tmp_path / "boxes.xyz")
    assert "boxes.xyz: the picture cannot be written (unknown file extension: .xyz)" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_folder_is_gone_through_and_what_is_broken_is_told_and_counted(predict, photos):
    result = predict(photos)
    assert result.stdout.splitlines() == [f"a.png: {RED_LINE}", f"a.png: {GREEN_LINE}", f"deep/b.PNG: {RED_LINE}"]
    assert "skipped: " in result.stderr
    assert "deep/c.png: truncated PNG" in result.stderr
    counts = "3 objects with a score of at least 0.5 (red 2, green 1) in 2 pictures; 1 more could not be read"
    assert counts in result.stderr
    assert result.exit_code == 0


def test_strict_makes_a_broken_picture_an_exit_code(predict, photos):
    assert predict(photos, "--strict").exit_code == 1


def test_only_broken_pictures_are_an_exit_code(predict, photos):
    assert predict(photos / "deep" / "c*.png").exit_code == 1


def test_pictures_keep_their_places_below_the_output(predict, photos, tmp_path):
    result = predict(photos, "--output", tmp_path / "out")
    assert result.stdout == ""
    written = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert written == ["a.png", "deep/b.PNG"]


def test_pictures_drawn_before_are_not_taken_for_sources(predict, photos):
    for _ in range(2):
        result = predict(photos, "--output", photos / "boxes")
        assert "in 2 pictures" in result.stderr
    assert not (photos / "boxes" / "boxes").exists()


def test_a_folder_is_not_drawn_over_itself(predict, photos):
    before = (photos / "a.png").read_bytes()
    assert "all pictures lie in the folder of the output" in str(predict(photos, "--output", photos).exception)
    assert (photos / "a.png").read_bytes() == before


def test_coco_results_hold_all_scores_and_pixels(predict, photos, tmp_path):
    predict(photos, "--json", tmp_path / "found.json", "--batch-size", 1)
    # x, y, width, height of red: 40, 10, 60 - 40, 20 - 10; of green: 0, 30, 20 - 0, 40 - 30.
    red, green = [40.0, 10.0, 20.0, 10.0], [0.0, 30.0, 20.0, 10.0]
    assert rows_of(tmp_path / "found.json") == [(1, 1, red), (1, 2, green), (2, 1, red)]
    described = json.loads((tmp_path / "found.images.json").read_text())
    assert described["images"] == [
        {"id": 1, "file_name": "a.png", "height": 40, "width": 80},
        {"id": 2, "file_name": "deep/b.PNG", "height": 40, "width": 80},
    ]
    assert described["categories"] == [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}]


def test_batches_do_not_change_what_is_found(predict, photos, tmp_path):
    for size in (1, 2, 8):
        predict(photos, "--json", tmp_path / f"{size}.json", "--batch-size", size)
    assert (tmp_path / "1.json").read_text() == (tmp_path / "2.json").read_text() == (tmp_path / "8.json").read_text()


def test_a_least_score_that_is_given_holds_for_coco_results_too(predict, photos, tmp_path):
    predict(photos, "--json", tmp_path / "found.json", "--min-score", 0.85)
    assert [row[:2] for row in rows_of(tmp_path / "found.json")] == [(1, 1), (2, 1)]


def write_ground_truth(path, images, categories=((1, "red"), (2, "green"), (3, "blue"))):
    rows = [{"id": i, "file_name": name, "height": h, "width": w} for i, name, h, w in images]
    annotations = [{"id": 1, "image_id": images[0][0], "category_id": 1, "bbox": [40, 10, 20, 10], "iscrowd": 0}]
    named = [{"id": class_id, "name": name} for class_id, name in categories]
    path.write_text(json.dumps({"images": rows, "annotations": annotations, "categories": named}))
    return path


def test_image_ids_are_those_of_the_ground_truth_and_can_be_evaluated(predict, photos, tmp_path):
    images = [(70, "photos/a.png", 40, 80), (50, "deep/b.PNG", 40, 80), (60, "deep/c.png", 40, 80)]
    truth = write_ground_truth(tmp_path / "labels.json", images)
    found = tmp_path / "found.json"
    predict(photos, "--json", found, "--ground-truth", truth)
    assert [row[:2] for row in rows_of(found)] == [(70, 1), (70, 2), (50, 1)]
    assert not (tmp_path / "found.images.json").exists()
    files = ["--detections", found, "--ground-truth", truth, "--out", tmp_path / "evaluation"]
    result = CliRunner().invoke(cli, ["evaluate", *map(str, files)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("images", "categories", "message"),
    [
        ([(1, "a.png", 40, 80)], None, r"lacks 2 of 3 pictures \(deep/b.PNG, deep/c.png\)"),
        ([(1, "a.png", 40, 80)], [(1, "rot"), (2, "green")], "among its categories 1 is 'rot', where the model has"),
        ([(1, "a.png", 40, 80)], [(1, "red")], "among its categories there is no 2, where the model has 'green'"),
    ],
)
def test_ground_truth_of_other_data_is_refused(predict, photos, tmp_path, images, categories, message):
    more = {"categories": categories} if categories else {}
    truth = write_ground_truth(tmp_path / "labels.json", images, **more)
    with pytest.raises(InputError, match=message):
        raise predict(photos, "--json", tmp_path / "found.json", "--ground-truth", truth).exception
    assert not (tmp_path / "found.json").exists()


def test_two_pictures_are_never_taken_for_the_same_image(predict, tmp_path):
    for folder in "ab":
        write_picture(tmp_path / "photos" / folder / "x.png")
    truth = write_ground_truth(tmp_path / "labels.json", [(1, "x.png", 40, 80)])
    result = predict(tmp_path / "photos", "--json", tmp_path / "found.json", "--ground-truth", truth)
    assert "lacks 1 of 2 pictures (b/x.png)" in str(result.exception)


def test_labels_of_pixels_as_stored_are_measured_on_pixels_as_stored(predict, tmp_path):
    picture = write_picture(tmp_path / "a.jpg", orientation=6)  # stored 80 high and 40 wide
    for height, width, left in ((80, 40, 10), (40, 80, 40)):
        truth = write_ground_truth(tmp_path / "labels.json", [(1, "a.jpg", height, width)])
        predict(picture, "--json", tmp_path / "found.json", "--ground-truth", truth)
        assert round(rows_of(tmp_path / "found.json")[0][2][0]) == left


def test_a_picture_of_another_size_than_its_labels_is_refused(predict, tmp_path):
    truth = write_ground_truth(tmp_path / "labels.json", [(1, "a.png", 30, 80)])
    picture = write_picture(tmp_path / "a.png")
    result = predict(picture, "--json", tmp_path / "found.json", "--ground-truth", truth)
    assert "a.png: got 80 x 40 pixels, where the annotations say 80 x 30." in str(result.exception)


def test_ground_truth_without_json_is_refused(predict, photos):
    assert "--ground-truth goes with --json" in str(predict(photos, "--ground-truth", "x.json").exception)


def test_results_that_cannot_be_written_leave_nothing(predict, photos, tmp_path, monkeypatch):
    def fail(*_):
        raise InputError("no room")

    monkeypatch.setattr(predict_files, "save_picture", fail)
    predict(photos, "--json", tmp_path / "found.json", "--output", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def names_of(*whats, **options):
    return [image.name for image in image_files.find_images([str(what) for what in whats], **options)]


def test_a_pattern_names_pictures_from_where_its_wildcards_begin(photos):
    assert names_of(photos / "**" / "*.png") == ["a.png", "deep/c.png"]
    assert names_of(photos / "d*" / "*") == ["deep/b.PNG", "deep/c.png"]


def test_a_pattern_does_not_lead_out_of_the_output(photos):
    with pytest.raises(InputError, match=r"got '\.\.' behind a wildcard, allowed: before it"):
        names_of(f"{photos}/*/../*.png")
    assert names_of(f"{photos}/deep/../*.png") == ["a.png"]


def test_a_picture_that_is_named_twice_is_taken_once(photos):
    assert names_of(photos, photos / "a.png", photos / "*.png") == ["a.png", "deep/b.PNG", "deep/c.png"]


def test_two_pictures_of_one_name_are_refused(tmp_path):
    paths = [write_picture(tmp_path / folder / "x.png") for folder in "ab"]
    with pytest.raises(InputError, match="would have the same name in the output; give the folder that holds both"):
        names_of(*paths)


def test_a_name_with_a_bracket_is_a_file_where_there_is_one(tmp_path):
    assert names_of(write_picture(tmp_path / "a[1].png")) == ["a[1].png"]


@pytest.mark.parametrize("what", ["nowhere", "nowhere/*.png", "x" * 5000, "empty"])
def test_what_is_not_there_is_refused(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no such file or folder|no pictures|cannot be read"):
        names_of(what)


def test_a_link_that_leads_out_of_a_folder_is_not_followed(photos, tmp_path):
    (photos / "deep" / "out.png").symlink_to(write_picture(tmp_path / "secret.png"))
    (image,) = [each for each in image_files.find_images([str(photos)]) if each.name == "deep/out.png"]
    with pytest.raises(InputError, match=r"deep/out\.png: the image cannot be read"):
        image.read()


def test_a_link_that_is_named_itself_is_followed(tmp_path):
    (tmp_path / "link.png").symlink_to(write_picture(tmp_path / "elsewhere" / "x.png"))
    (image,) = image_files.find_images([str(tmp_path / "link.png")])
    assert image.read()[1] == 3200


def test_a_score_that_is_not_a_number_is_refused(tmp_path):
    result = CliRunner().invoke(cli, ["predict", str(tmp_path), "--model", str(tmp_path), "--min-score", "nan"])
    assert result.exit_code == 2
    assert "'nan' is not a number" in result.output
