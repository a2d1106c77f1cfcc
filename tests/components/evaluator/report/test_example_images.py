import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.evaluation_result import assess, measure_model
from detloom.components.evaluator.measurements import Split
from detloom.components.evaluator.report.example_images import draw_image, plan_images
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates
from detloom.trainer_module.boxes.masks import encode_masks

GATES = Gates(baseline=BaselineGate(num_resamples=100))
CAT, DOG, SMALL = (1, 0, 0, 40, 40), (3, 50, 50, 90, 90), (3, 90, 90, 95, 95)


def subjects_of(plan):
    return [each for each in plan.objects if each.is_subject]


@pytest.fixture
def plan(label_map):
    """Plan example images for (truth, candidate's detections, baseline's detections or None) of each image."""

    def call(images, num_each=3):
        truth, found, before = zip(*images, strict=True)
        split = Split(ground_truth=truth, features=[{}] * len(truth), label_map=label_map)
        candidate = measure_model(split, found, EvaluatorSettings())
        baseline = measure_model(split, before, EvaluatorSettings()) if before[0] else None
        names = [f"image {image.image_id}" for image in truth]
        evaluation = assess(split, names, candidate, baseline, GATES)
        return plan_images(evaluation, num_each)

    return call


@pytest.fixture
def plan_first(plan, make_image):
    """Plan the image of a cat with these detections."""

    def call(*found, before=None, **truth):
        image = make_image(1, **{"truth": [CAT], **truth}, found=found)
        return next(each for each in plan([(*image, before)]) if each.kind == "first")

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
    assert [subject.score for subject in subjects_of(mistakes[1])] == [0.5]
    assert [each.class_id for each in mistakes[1].objects if each.layer == "truth"] == [1]


def test_missed_objects_are_sorted_by_size(plan, make_image):
    images = [
        (*make_image(1, truth=[CAT, SMALL], found=[(*CAT, 0.9)]), None),
        (*make_image(2, truth=[CAT, DOG, SMALL], found=[(*CAT, 0.9)]), None),
    ]
    missed = [each for each in plan(images) if each.kind == "missed"]
    assert [(each.image_index, each.text) for each in missed] == [(1, "dog missed"), (0, "dog missed")]
    (subject,) = subjects_of(missed[0])
    np.testing.assert_allclose(subject.box_yxyx_rel, [0.5, 0.5, 0.9, 0.9])
    assert (subject.layer, subject.steps) == ("truth", (0,))


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
    layers = [each.layer for each in better.objects]
    assert layers == ["truth", "truth", "baseline", "candidate", "candidate"]


def test_the_number_of_images_per_kind_is_limited(plan, make_image):
    images = [(*make_image(number, truth=[CAT, DOG], found=[(*CAT, 0.9), (*SMALL, 0.5)]), None) for number in range(5)]
    plans = plan(images, num_each=2)
    assert [each.kind for each in plans] == ["false", "false", "missed", "missed", "first", "first"]
    assert [each.image_index for each in plans[-2:]] == [0, 1]
    assert plan(images, num_each=0) == []


def test_outcomes_do_not_depend_on_the_score_and_crowds_are_ignored(plan_first):
    found = [(*CAT, 0.9), (*CAT, 0.8), (*SMALL, 0.7), (3, 60, 60, 70, 70, 0.06)]
    first = plan_first(*found, truth=[CAT, DOG], crowds=[1])
    assert [(each.score, each.outcome) for each in first.objects] == [
        (None, "plain"),
        (None, "crowd"),
        (0.06, "ignored"),  # inside the crowd
        (0.7, "false"),
        (0.8, "false"),  # the cat has a detection already
        (0.9, "true"),
    ]


def test_detections_below_the_least_score_are_drawn_only_if_the_best_f1_needs_them(plan_first):
    def scores(*found):
        return [each.score for each in plan_first(*found).objects if each.layer == "candidate"]

    assert scores((*CAT, 0.9), (*DOG, 0.04)) == [0.9]
    assert scores((*CAT, 0.03), (*DOG, 0.02)) == [0.03]


def test_steps_are_those_of_the_matched_detections_of_each_model(plan_first, make_image):
    before = make_image(1, found=[(*CAT, 0.2)])[1]
    first = plan_first((*CAT, 0.9), (*DOG, 0.4), truth=[CAT, DOG], before=before)
    # The sliders have the thresholds 0, 0.01, ...; the best F1 of the models, at 0.4 and 0.2, are among them.
    assert [each.steps for each in first.objects] == [(91, 21), (41, 0), (21,), (41,), (91,)]


def test_an_example_image_is_a_small_jpeg_with_the_objects_in_its_pixels(plan_first, label_map):
    first = plan_first((*CAT, 0.9))
    drawn = draw_image(first, np.zeros((1440, 720, 3), np.uint8), "a.jpg", label_map)
    assert (drawn.kind, drawn.name, drawn.text) == ("first", "a.jpg", "objects: 1, detections: 1")
    head, _, data = drawn.uri.partition(",")
    assert head == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == drawn.size_wh == (360, 720)
    # A cat in the upper left 0.4 of the image.
    assert [(each.label, each.box_xywh_px) for each in drawn.objects] == [
        ("cat", (0.0, 0.0, 144.0, 288.0)),
        ("cat 0.90", (0.0, 0.0, 144.0, 288.0)),
    ]


def test_a_box_that_is_inverted_or_not_finite_is_not_drawn(plan_first, label_map):
    first = plan_first((*CAT, 0.9))
    boxes = ([0.5, 0.5, 0.4, 0.9], [0.1, np.nan, 0.4, 0.9])
    broken = tuple(replace(each, box_yxyx_rel=np.array(box)) for each, box in zip(first.objects, boxes, strict=True))
    drawn = draw_image(replace(first, objects=broken), np.zeros((100, 100, 3), np.uint8), "a.jpg", label_map)
    assert drawn.objects == ()


def test_a_mask_is_a_transparent_image_over_its_box(plan_first, label_map):
    first = plan_first((*CAT, 0.9))
    mask = np.zeros((100, 100), np.uint8)
    mask[:20, :40] = 1  # the upper half of the box
    (counts,) = encode_masks([mask])
    planned = replace(first.objects[0], mask_counts=counts, points_yx_rel=np.array([[0.5, 0.25], [np.nan, np.nan]]))
    drawn = draw_image(replace(first, objects=(planned,)), np.zeros((100, 100, 3), np.uint8), "a.jpg", label_map)
    (only,) = drawn.objects
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(only.mask_uri.partition(",")[2]))).convert("RGBA"))
    assert pixels.shape == (40, 40, 4)
    assert (pixels[:20, :, 3] > 0).all()
    assert (pixels[20:, :, 3] == 0).all()
    assert only.points_xy_px == ((25.0, 50.0),)
