import numpy as np

from detloom.components.evaluator.analysis.confusion import count_confusion
from detloom.trainer_module.evaluation.matches import match_detections

NAMES = ("cat", "dog", "owl")


def count(pairs, label_map, min_scores=(0.5, 0.5, 0.5)):
    truth, found = zip(*pairs, strict=True)
    return count_confusion(match_detections(truth, found, label_map), NAMES, min_scores).counts


def test_counts_match_values_by_hand(make_image, label_map):
    pair = make_image(
        1,
        truth=[(1, 0, 0, 20, 20), (1, 0, 40, 20, 60), (3, 40, 0, 60, 20)],
        found=[
            (1, 0, 0, 20, 20, 0.9),  # the first cat
            (3, 0, 0, 20, 20, 0.95),  # the same cat as a dog, but the cat is already matched
            (3, 0, 40, 20, 60, 0.8),  # the second cat, as a dog
            (4, 80, 80, 99, 99, 0.7),  # background
            (3, 40, 0, 60, 20, 0.4),  # the dog, below the threshold
        ],
    )
    assert count([pair], label_map) == (
        (1, 1, 0, 0),  # cats
        (0, 0, 0, 1),  # the dog was missed
        (0, 0, 0, 0),
        (0, 1, 1, 0),  # a dog and an owl without an unmatched object
    )


def test_each_class_has_its_own_threshold(make_image, label_map):
    pair = make_image(1, truth=[(3, 0, 0, 20, 20)], found=[(3, 0, 0, 20, 20, 0.4)])
    assert count([pair], label_map, (0.5, 0.5, 0.5))[1] == (0, 0, 0, 1)
    assert count([pair], label_map, (0.5, 0.4, 0.5))[1] == (0, 1, 0, 0)


def test_a_detection_on_a_crowd_is_ignored(make_image, label_map):
    pair = make_image(1, truth=[(1, 0, 0, 99, 99)], found=[(1, 0, 0, 20, 20, 0.9)], crowds=[0])
    assert not np.any(count([pair, make_image(2)], label_map))  # the second image is empty


def test_pairs_across_classes_are_formed_by_decreasing_iou(make_image, label_map):
    pair = make_image(
        1,
        truth=[(1, 0, 0, 20, 20)],
        found=[(3, 0, 0, 20, 14, 0.9), (4, 0, 0, 20, 18, 0.6)],  # overlaps 0.7 and 0.9
    )
    counts = count([pair], label_map)
    assert counts[0] == (0, 0, 1, 0)
    assert counts[3] == (0, 1, 0, 0)


def test_row_sums_are_objects_and_column_sums_are_detections(make_split, label_map):
    truth, found = make_split(4, num_images=40)
    matches = match_detections(truth, found, label_map)
    counts = np.array(count_confusion(matches, NAMES, (0.3, 0.3, 0.3)).counts)
    assert (
        counts[:3].sum(axis=1).tolist()
        == np.bincount(matches.truth.class_index[~matches.is_crowd], minlength=3).tolist()
    )
    used = (matches.scores >= 0.3) & ~matches.is_ignored(0)
    assert counts[:, :3].sum(axis=0).tolist() == np.bincount(matches.found.class_index[used], minlength=3).tolist()
