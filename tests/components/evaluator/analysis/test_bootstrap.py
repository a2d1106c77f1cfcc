from dataclasses import replace

import numpy as np
import pytest

from detloom.components.evaluator.analysis import bootstrap
from detloom.components.evaluator.analysis.bootstrap import resample as resample_as_asked
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics
from detloom.trainer_module.evaluation.matches import match_detections


def resample(models, label_map, num_resamples=1000, confidence=0.95, seed=0):
    return resample_as_asked(models, label_map, num_resamples=num_resamples, confidence=confidence, seed=seed)


def worse(found, share, seed=0):
    """Return the detections without a random share of them."""
    generator = np.random.default_rng(seed)
    result = []
    for image in found:
        keep = generator.random(len(image.scores)) >= share
        result.append(
            replace(
                image,
                boxes_yxyx_rel=image.boxes_yxyx_rel[keep],
                scores=image.scores[keep],
                class_ids=image.class_ids[keep],
            )
        )
    return result


def test_values_equal_the_coco_metrics(make_split, label_map):
    truth, found = make_split(0, num_images=30)
    (result,) = resample([match_detections(truth, found, label_map)], label_map, num_resamples=20)
    expected = compute_coco_metrics(truth, found, label_map)
    assert result.AP.value == pytest.approx(expected.AP, abs=1e-12)
    assert result.AP50.value == pytest.approx(expected.AP50, abs=1e-12)
    assert [row.AP.value for row in result.per_class] == pytest.approx([row.AP for row in expected.per_class])
    assert result.AP.low < result.AP.value < result.AP.high


def test_a_model_that_misses_half_is_significantly_worse(make_good_split, label_map):
    truth, found, _ = make_good_split(0, 60)
    matches = [match_detections(truth, each, label_map) for each in (worse(found, 0.5), found)]
    candidate, baseline, difference = resample(matches, label_map, num_resamples=200)
    assert difference.AP.value == pytest.approx(candidate.AP.value - baseline.AP.value)
    assert difference.AP.high < 0


def test_pairing_narrows_the_interval(make_good_split, label_map):
    truth, found, _ = make_good_split(1, 60)
    matches = [match_detections(truth, each, label_map) for each in (worse(found, 0.02), found)]
    candidate, _, difference = resample(matches, label_map, num_resamples=200)
    assert difference.AP.high - difference.AP.low < 0.5 * (candidate.AP.high - candidate.AP.low)


def test_the_same_seed_gives_the_same_intervals_and_a_model_does_not_differ_from_itself(make_split, label_map):
    truth, found = make_split(0)
    matches = match_detections(truth, found, label_map)
    first, again, other = (resample([matches] * 2, label_map, num_resamples=30, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    difference = first[-1].AP
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert difference.holds(0)


@pytest.mark.nightly
def test_the_interval_has_its_nominal_coverage(make_good_split, label_map):
    # Splits from a large population: of 50 90 % intervals, 40 to 44 contain its difference (standard deviation 2.8).
    truth, *models = make_good_split(0, 1000)
    candidate, baseline = (compute_coco_metrics(truth, found, label_map).AP for found in models)
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(50):
        rows = generator.choice(len(truth), 60, replace=False)
        matches = [match_detections([truth[i] for i in rows], [found[i] for i in rows], label_map) for found in models]
        *_, difference = resample(matches, label_map, num_resamples=100, confidence=0.9)
        covered += difference.AP.holds(candidate - baseline)
    assert 32 <= covered <= 49


def test_without_objects_there_is_no_interval(make_image, label_map):
    truth, found = make_image(1, truth=[(1, 0, 0, 20, 20)], found=[(1, 0, 0, 20, 20, 0.9)])
    (result,) = resample([match_detections([truth], [found], label_map)], label_map, num_resamples=10)
    assert (result.per_class[1].AP.low, result.per_class[1].AP.high) == (None, None)
    assert not result.per_class[1].AP.holds(0)
    assert [result.AP.value, result.AP.low, result.AP.high] == pytest.approx([1, 1, 1])
    (empty,) = resample([match_detections([], [], label_map)], label_map, num_resamples=10)
    assert empty.AP.value is None


def test_large_splits_use_fewer_resamples(make_split, label_map, monkeypatch):
    monkeypatch.setattr(bootstrap, "_MAX_WORK", 10)
    truth, found = make_split(0)
    (result,) = resample([match_detections(truth, found, label_map)], label_map)
    assert result.num_resamples == 200


def test_different_images_are_refused(make_split, label_map):
    pairs = [make_split(0, num_images=count) for count in (3, 4)]
    with pytest.raises(ValueError, match="models: got"):
        resample([match_detections(*pair, label_map) for pair in pairs], label_map)
