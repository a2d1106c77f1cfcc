import json

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from detloom.components.evaluator import coco_files
from detloom.components.evaluator.coco_files import read_coco_detections, read_coco_ground_truth
from detloom.schemas.errors import InputError

CAT, DOG = {"id": 3, "name": "cat"}, {"id": 8, "name": "dog"}
IMAGE = {"id": 7, "height": 100, "width": 200, "file_name": "seven.jpg"}
BOX = {"id": 1, "image_id": 7, "category_id": 3, "bbox": [20, 10, 100, 50]}
FOUND = {"image_id": 7, "category_id": 3, "score": 0.5, "bbox": [20, 10, 100, 50]}
RIGHT_HALF = {"size": [100, 200], "counts": [10_000, 10_000]}


def truth_of(*, images=(IMAGE,), annotations=(BOX,), categories=(CAT, DOG)):
    return {"images": list(images), "annotations": list(annotations), "categories": list(categories)}


def read_truth(tmp_path, content=None, **lists):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content if content is not None else truth_of(**lists)))
    return read_coco_ground_truth(path)


def read_found(tmp_path, *rows, truth=None):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(list(rows)))
    return read_coco_detections(path, truth or read_truth(tmp_path))


def test_images_are_sorted_by_id_with_relative_boxes(tmp_path):
    nameless = {"id": 2, "height": 50, "width": 50.0}
    read = read_truth(tmp_path, images=[IMAGE, nameless], annotations=[BOX, {**BOX, "id": 9, "iscrowd": 1, "area": 12}])
    assert read.file_names == ["2", "seven.jpg"]
    empty, seven = read.split.ground_truth
    assert (empty.image_id, empty.image_hw, empty.boxes_yxyx_rel.shape) == (2, (50, 50), (0, 4))
    assert (seven.image_id, seven.image_hw) == (7, (100, 200))
    # ymin 10 / 100, xmin 20 / 200, ymax 60 / 100, xmax 120 / 200
    np.testing.assert_allclose(seven.boxes_yxyx_rel, [[0.1, 0.1, 0.6, 0.6]] * 2)
    assert seven.class_ids.tolist() == [3, 3]
    assert seven.is_crowd.tolist() == [False, True]
    assert seven.area_px.tolist() == [5000, 12]  # 100 x 50 for the missing area
    assert read.split.label_map.names_by_id == ((3, "cat"), (8, "dog"))


def test_features_of_an_image_are_read(tmp_path):
    images = [{**IMAGE, "features": {"weather": ["rain", "fog"], "hour": [7]}}, {**IMAGE, "id": 8}]
    assert read_truth(tmp_path, images=images).split.features == [{"weather": ("rain", "fog"), "hour": (7.0,)}, {}]


def test_the_dataset_keeps_only_keys_that_evaluation_needs(tmp_path):
    row = {**BOX, "drop": True, "ignore": 1, "segmentation": [], "keypoints": [1, 2, 2], "num_keypoints": 1}
    dataset = read_truth(tmp_path, annotations=[row]).dataset
    points = {"keypoints": [1, 2, 2], "num_keypoints": 1}
    assert dataset["annotations"] == [{**BOX, "area": 5000, "iscrowd": 0, "difficult": 0, "group_of": 0, **points}]
    assert dataset["images"] == [IMAGE]


def test_an_unused_category_0_is_dropped_even_with_a_duplicate_name(tmp_path):
    read = read_truth(tmp_path, categories=[{"id": 0, "name": "cat"}, CAT])
    assert read.split.label_map.names == ("cat",)
    assert read.dataset["categories"] == [CAT]


def test_detections_are_grouped_by_image_and_sorted_by_score(tmp_path):
    truth = read_truth(tmp_path, images=[IMAGE, {**IMAGE, "id": 2}])
    rows = [{**FOUND, "score": score, "category_id": k} for score, k in ((0.5, 3), (0.9, 3), (0.5, 8), (1, 8))]
    read = read_found(tmp_path, *rows, truth=truth)
    empty, seven = read.detections
    assert (empty.image_id, empty.boxes_yxyx_rel.shape, empty.scores.shape) == (2, (0, 4), (0,))
    assert (seven.scores.tolist(), seven.class_ids.tolist()) == ([1, 0.9, 0.5, 0.5], [8, 3, 3, 8])
    assert [row["score"] for row in read.results] == [0.5, 0.9, 0.5, 1]
    assert read.results[0] == {**FOUND, "area": 5000}


def test_an_empty_results_file_gives_an_empty_entry_per_image(tmp_path):
    read = read_found(tmp_path)
    assert (read.results, [len(each.scores) for each in read.detections]) == ([], [0])


@pytest.mark.parametrize(
    "mask",
    [RIGHT_HALF, [[100, 0, 200, 0, 200, 100, 100, 100]], coco_mask.frPyObjects(RIGHT_HALF, 100, 200)],
    ids=["runs", "polygon", "compressed runs"],
)
def test_a_mask_provides_a_missing_box_and_the_area(mask, tmp_path):
    if isinstance(mask, dict) and isinstance(mask["counts"], bytes):
        mask = {**mask, "counts": mask["counts"].decode()}
    row = {key: FOUND[key] for key in ("image_id", "category_id", "score")}
    read = read_found(tmp_path, {**row, "bbox": [], "segmentation": mask})
    # Columns 100 to 199 of 100 x 200 pixels; in column order, 100 columns of 100 pixels come first.
    assert (read.results[0]["bbox"], read.results[0]["area"]) == ([100, 0, 100, 100], 10_000)
    np.testing.assert_allclose(read.detections[0].boxes_yxyx_rel, [[0, 0.5, 1, 1]])
    with_box = read_found(tmp_path, {**FOUND, "segmentation": mask}).results[0]
    assert (with_box["bbox"], with_box["area"]) == (FOUND["bbox"], 5000)  # the area of the box, as in loadRes
    assert with_box["segmentation"] == read.results[0]["segmentation"]


def test_keypoints_provide_the_box_of_detections_but_not_of_results(tmp_path):
    row = {key: FOUND[key] for key in ("image_id", "category_id", "score")}
    read = read_found(tmp_path, {**row, "keypoints": [20, 10, 1, 120, 60, 0]})
    assert "bbox" not in read.results[0]
    assert read.results[0]["area"] == 5000
    np.testing.assert_allclose(read.detections[0].boxes_yxyx_rel, [[0.1, 0.1, 0.6, 0.6]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "got a list"),
        ({"images": [], "categories": []}, "'annotations'"),
        (truth_of(images=["x"]), r"images\[0\]: got text"),
        (truth_of(images=[{**IMAGE, "id": "7"}]), r"images\[0\]: 'id' .*'7'"),
        (truth_of(images=[{**IMAGE, "id": True}]), r"images\[0\]: 'id' .*True"),
        (truth_of(images=[{**IMAGE, "id": 2**63}]), r"images\[0\]: 'id' .*9223372036854775808"),
        (truth_of(images=[{**IMAGE, "height": 0}]), r"images\[0\]: 'height' .*1 to 1048576, got 0"),
        (truth_of(images=[{"id": 7, "height": 9}]), r"images\[0\]: 'width' .*got nothing"),
        (truth_of(images=[{**IMAGE, "file_name": 4}]), r"images\[0\]: 'file_name' .*got 4"),
        (truth_of(images=[IMAGE, IMAGE]), "images: .*id 7"),
        (truth_of(images=[{**IMAGE, "features": [1]}]), r"images\[0\]: 'features' "),
        (truth_of(images=[{**IMAGE, "features": {"a": 1}}]), r"images\[0\]: 'features': 'a' .*got 1"),
        (truth_of(images=[{**IMAGE, "features": {"a": [None]}}]), r"images\[0\]: 'features' .*got None"),
        (truth_of(categories=[{**CAT, "id": None}]), r"categories\[0\]: 'id' .*got None"),
        (truth_of(categories=[CAT, {"id": 8}]), r"categories\[1\]: 'name' .*got nothing"),
        (truth_of(categories=[CAT, CAT]), "categories: .*id 3"),
        (truth_of(categories=[CAT, {**DOG, "name": "cat"}]), "categories: .*'cat'"),
        (truth_of(categories=[CAT, {**DOG, "id": -1}]), "categories: got id -1, allowed: 1 "),
        (
            truth_of(categories=[CAT, {**DOG, "id": 0}], annotations=[{**BOX, "category_id": 0}]),
            "categories: got id 0, allowed: 1 ",
        ),
        (truth_of(annotations=[], categories=[]), "categories: "),
        (truth_of(annotations=[BOX, BOX]), "annotations: .*id 1"),
        (truth_of(annotations=[{**BOX, "id": 1.0}]), r"annotations\[0\]: 'id' .*got 1.0"),
        (truth_of(annotations=[{**BOX, "image_id": 4}]), r"annotations\[0\]: 'image_id' 4 "),
        (truth_of(annotations=[{**BOX, "category_id": 4}]), r"annotations\[0\]: 'category_id' 4 "),
        (truth_of(annotations=[{**BOX, "bbox": [1, 2, 3]}]), r"annotations\[0\]: 'bbox' .*four numbers"),
        (truth_of(annotations=[{**BOX, "bbox": [1, 2, 3, "4"]}]), r"annotations\[0\]: 'bbox' .*got '4'"),
        (truth_of(annotations=[{**BOX, "bbox": [1, 2, 3, np.inf]}]), r"annotations\[0\]: 'bbox' .*got inf"),
        (truth_of(annotations=[{**BOX, "bbox": [np.nan, 2, 3, 4]}]), r"annotations\[0\]: 'bbox' .*got nan"),
        (truth_of(annotations=[{**BOX, "bbox": [10**400, 2, 3, 4]}]), r"annotations\[0\]: 'bbox' .*finite"),
        (truth_of(annotations=[{**BOX, "bbox": [1, 2, -3, 4]}]), r"annotations\[0\]: 'bbox' .*-3.*0 or more"),
        (truth_of(annotations=[{**BOX, "area": -1}]), r"annotations\[0\]: 'area' .*0 or more, got -1"),
        (truth_of(annotations=[{**BOX, "area": "big"}]), r"annotations\[0\]: 'area' .*finite.*'big'"),
        (truth_of(annotations=[{**BOX, "iscrowd": 2}]), r"annotations\[0\]: 'iscrowd' .*0 or 1, got 2"),
    ],
)
def test_an_invalid_annotation_file_is_refused_with_the_entry(content, message, tmp_path):
    with pytest.raises(InputError, match=rf"truth\.json: .*{message}"):
        read_truth(tmp_path, content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": 9}, "'image_id' 9 "),
        ({"category_id": 9}, "'category_id' 9 "),
        ({"score": None}, "'score' .*got None"),
        ({"score": np.nan}, "'score' .*got nan"),
        ({"score": True}, "'score' .*got True"),
        ({"bbox": [1, 2, 3, -4]}, "'bbox' .*-4.*0 or more"),
        ({"bbox": None}, "has none .*allowed: bbox "),
        ({"keypoints": [1, 2, 2]}, "has bbox and keypoints, allowed: bbox "),
    ],
)
def test_an_invalid_detection_is_refused_with_the_row(changes, message, tmp_path):
    with pytest.raises(InputError, match=rf"found\.json: results\[1\]: {message}"):
        read_found(tmp_path, FOUND, {**FOUND, **changes})


def test_a_results_row_without_shapes_and_an_annotation_file_for_a_results_file_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"results\[0\]: .*'bbox', 'segmentation' and 'keypoints'"):
        read_found(tmp_path, {**FOUND, "bbox": []})
    truth = read_truth(tmp_path)
    with pytest.raises(InputError, match=r"truth\.json: got an object, allowed: .*a list"):
        read_coco_detections(tmp_path / "truth.json", truth)


@pytest.mark.reliability("hostile input", "evaluate")
@pytest.mark.parametrize("mask", ["mask", {"size": [100, 200], "counts": "0P"}])
def test_an_invalid_mask_is_refused_with_the_row(mask, tmp_path):
    row = {key: FOUND[key] for key in ("image_id", "category_id", "score")}
    with pytest.raises(InputError, match=r"results\[0\]: the mask"):
        read_found(tmp_path, {**row, "segmentation": mask})


@pytest.mark.reliability("torn file", "evaluate")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{\n]", r"truth\.json:2: not JSON"),
        (b"", r"truth\.json:1: not JSON"),
        (b'"\xff"', r"truth\.json: not JSON"),
        (b"[" * 200_000, r"truth\.json: .*nested too deeply"),
        (b"x" * 100, r"truth\.json: got more than 50 bytes"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused(data, message, tmp_path, monkeypatch):
    if len(data) == 100:
        monkeypatch.setattr(coco_files, "MAX_FILE_BYTES", 50)
    (tmp_path / "truth.json").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_coco_ground_truth(tmp_path / "truth.json")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_coco_ground_truth(path)
