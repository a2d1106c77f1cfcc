import base64
import io

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.evaluation import assess, measure_model
from detloom.components.evaluator.measurements import Split
from detloom.components.evaluator.report.images import draw_image, plan_images
from detloom.schemas.run_file.evaluator_and_gates import BaselineGate, Evaluator, Gates

GATES = Gates(baseline=BaselineGate(num_resamples=100))
CAT, DOG, SMALL = (1, 0, 0, 40, 40), (3, 50, 50, 90, 90), (3, 90, 90, 95, 95)


@pytest.fixture
def plan(label_map):
    """Plan example images for (truth, candidate's detections, baseline's detections or None) of each image."""

    def call(images, num_each=3):
        truth, found, before = zip(*images, strict=True)
        split = Split(ground_truth=truth, features=[{}] * len(truth), label_map=label_map)
        candidate = measure_model(split, found, Evaluator())
        baseline = measure_model(split, before, Evaluator()) if before[0] else None
        names = [f"image {image.image_id}" for image in truth]
        evaluation = assess(split, names, candidate, baseline, GATES)
        return plan_images(evaluation, num_each, baseline=before if baseline else ())

    return call


def test_wrong_detections_are_sorted_by_score_with_one_per_image(plan, make_image):
    images = [
        (*make_image(1, truth=[CAT], found=[(*CAT, 0.9), (*DOG, 0.5), (*SMALL, 0.4)]), None),
        (*make_image(2, truth=[CAT], found=[(*CAT, 0.9), (3, *CAT[1:], 0.7)]), None),
    ]
    mistakes = [each for each in plan(images) if each.kind == "false"]
    assert [(each.image_index, each.text) for each in mistakes] == [
        (1, "dog with score 0.70 has the wrong class"),
        (0, "dog with score 0.50 matches no labelled object"),
    ]
    assert mistakes[1].right.scores.tolist() == [0.5]
    assert mistakes[1].left.class_ids.tolist() == [1]


def test_missed_objects_are_sorted_by_size(plan, make_image):
    images = [
        (*make_image(1, truth=[CAT, SMALL], found=[(*CAT, 0.9)]), None),
        (*make_image(2, truth=[CAT, DOG, SMALL], found=[(*CAT, 0.9)]), None),
    ]
    missed = [each for each in plan(images) if each.kind == "missed"]
    assert [(each.image_index, each.text) for each in missed] == [(1, "dog missed"), (0, "dog missed")]
    np.testing.assert_allclose(missed[0].left.boxes_yxyx_rel, [[0.5, 0.5, 0.9, 0.9]])
    assert missed[0].right.class_ids.tolist() == [1]


def test_a_detection_on_a_crowd_is_not_shown_as_wrong(plan, make_image):
    truth, found = make_image(1, truth=[CAT, DOG], found=[(*CAT, 0.9), (3, 60, 60, 70, 70, 0.8)], crowds=[1])
    assert not [each for each in plan([(truth, found, None)]) if each.kind == "false"]


def test_improved_and_degraded_images_are_selected(plan, make_image):
    def image(number, found, before):
        truth, detections = make_image(number, truth=[CAT, DOG], found=[(*box, 0.9) for box in found])
        return truth, detections, make_image(number, found=[(*box, 0.9) for box in before])[1]

    images = [image(1, [CAT], [CAT, DOG]), image(2, [CAT, DOG], [CAT]), image(3, [CAT, DOG], [CAT, DOG])]
    plans = plan(images)
    (better,), (worse,) = ([each for each in plans if each.kind == kind] for kind in ("better", "worse"))
    assert (better.image_index, worse.image_index) == (1, 0)
    assert better.text == "baseline 1 correct, 0 wrong, 1 missed; candidate 2 correct, 0 wrong, 0 missed"
    assert (better.left.label, len(better.left.class_ids)) == ("baseline", 1)
    assert (better.right.label, len(better.right.class_ids)) == ("candidate", 2)


def test_the_number_of_images_per_kind_is_limited(plan, make_image):
    images = [(*make_image(number, truth=[CAT, DOG], found=[(*CAT, 0.9), (*SMALL, 0.5)]), None) for number in range(5)]
    plans = plan(images, num_each=2)
    assert [each.kind for each in plans] == ["false", "false", "missed", "missed", "first", "first"]
    assert [each.image_index for each in plans[-2:]] == [0, 1]
    assert plan(images, num_each=0) == []


def test_an_example_image_is_two_small_jpegs(plan, make_image, label_map):
    (first,) = [
        each for each in plan([(*make_image(1, truth=[CAT], found=[(*CAT, 0.9)]), None)]) if each.kind == "first"
    ]
    image = draw_image(first, np.zeros((1000, 500, 3), np.uint8), "a.jpg", label_map)
    assert (image.kind, image.name, image.text) == ("first", "a.jpg", "objects: 1, detections: 1")
    assert (image.left_label, image.right_label) == ("ground truth", "detections")
    for uri in (image.left_uri, image.right_uri):
        head, _, data = uri.partition(",")
        assert head == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (240, 480)
