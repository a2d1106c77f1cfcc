import base64
import io

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.assess import assess, measure_model
from detloom.components.evaluator.measurements import Split
from detloom.components.evaluator.pictures import draw_picture, plan_pictures
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import BaselineGate, Gates

GATES = Gates(baseline=BaselineGate(num_resamples=100))
CAT, DOG, SMALL = (1, 0, 0, 40, 40), (3, 50, 50, 90, 90), (3, 90, 90, 95, 95)


@pytest.fixture
def plan(label_map):
    """Plans for (truth, candidate's detections, baseline's detections or none) of images."""

    def call(images, num_each=3):
        truth, found, before = zip(*images, strict=True)
        split = Split(ground_truth=truth, features=[{}] * len(truth), label_map=label_map)
        candidate = measure_model(split, found, Evaluator())
        baseline = measure_model(split, before, Evaluator()) if before[0] else None
        names = [f"image {image.image_id}" for image in truth]
        evaluation = assess(split, names, candidate, baseline, GATES)
        return plan_pictures(evaluation, num_each, baseline=before if baseline else ())

    return call


def test_the_surest_mistake_of_each_image_comes_first(plan, make_image):
    images = [
        (*make_image(1, truth=[CAT], found=[(*CAT, 0.9), (*DOG, 0.5), (*SMALL, 0.4)]), None),
        (*make_image(2, truth=[CAT], found=[(*CAT, 0.9), (3, *CAT[1:], 0.7)]), None),
    ]
    mistakes = [each for each in plan(images) if each.kind == "false"]
    assert [(each.image_index, each.text) for each in mistakes] == [
        (1, "dog with score 0.70 is of another class"),
        (0, "dog with score 0.50 is nothing that is labelled"),
    ]
    assert mistakes[1].right.scores.tolist() == [0.5]
    assert mistakes[1].left.class_ids.tolist() == [1]


def test_the_largest_missed_object_comes_first(plan, make_image):
    images = [
        (*make_image(1, truth=[CAT, SMALL], found=[(*CAT, 0.9)]), None),
        (*make_image(2, truth=[CAT, DOG, SMALL], found=[(*CAT, 0.9)]), None),
    ]
    missed = [each for each in plan(images) if each.kind == "missed"]
    assert [(each.image_index, each.text) for each in missed] == [(1, "dog missed"), (0, "dog missed")]
    np.testing.assert_allclose(missed[0].left.boxes_yxyx_rel, [[0.5, 0.5, 0.9, 0.9]])
    assert missed[0].right.class_ids.tolist() == [1]


def test_a_mistake_on_a_crowd_is_none(plan, make_image):
    truth, found = make_image(1, truth=[CAT, DOG], found=[(*CAT, 0.9), (3, 60, 60, 70, 70, 0.8)], crowds=[1])
    assert not [each for each in plan([(truth, found, None)]) if each.kind == "false"]


def test_images_that_got_better_and_worse(plan, make_image):
    def image(number, found, before):
        truth, detections = make_image(number, truth=[CAT, DOG], found=[(*box, 0.9) for box in found])
        return truth, detections, make_image(number, found=[(*box, 0.9) for box in before])[1]

    images = [image(1, [CAT], [CAT, DOG]), image(2, [CAT, DOG], [CAT]), image(3, [CAT, DOG], [CAT, DOG])]
    plans = plan(images)
    (better,), (worse,) = ([each for each in plans if each.kind == kind] for kind in ("better", "worse"))
    assert (better.image_index, worse.image_index) == (1, 0)
    assert better.text == "baseline 1 right, 0 wrong, 1 missed; candidate 2 right, 0 wrong, 0 missed"
    assert (better.left.label, len(better.left.class_ids)) == ("baseline", 1)
    assert (better.right.label, len(better.right.class_ids)) == ("candidate", 2)


def test_no_more_than_asked_of_each_kind(plan, make_image):
    images = [(*make_image(number, truth=[CAT, DOG], found=[(*CAT, 0.9), (*SMALL, 0.5)]), None) for number in range(5)]
    plans = plan(images, num_each=2)
    assert [each.kind for each in plans] == ["false", "false", "missed", "missed", "first", "first"]
    assert [each.image_index for each in plans[-2:]] == [0, 1]
    assert plan(images, num_each=0) == []


def test_a_picture_is_two_small_jpegs(plan, make_image, label_map):
    (first,) = [
        each for each in plan([(*make_image(1, truth=[CAT], found=[(*CAT, 0.9)]), None)]) if each.kind == "first"
    ]
    picture = draw_picture(first, np.zeros((1000, 500, 3), np.uint8), "a.jpg", label_map)
    assert (picture.kind, picture.name, picture.text) == ("first", "a.jpg", "1 labelled, 1 found")
    assert (picture.left_label, picture.right_label) == ("labelled", "found")
    for uri in (picture.left_uri, picture.right_uri):
        head, _, data = uri.partition(",")
        assert head == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (240, 480)
