from detloom.components.evaluator.baseline_comparison import ImageScore, find_changes, score_images
from detloom.trainer_module.evaluation.matches import match_detections

CAT, DOG = (1, 0, 0, 20, 20), (3, 40, 40, 80, 80)


def test_scores_match_values_by_hand(make_image, label_map):
    pairs = [
        make_image(1, truth=[CAT, DOG], found=[(*CAT, 0.9), (*CAT, 0.8), (*DOG, 0.3)]),
        make_image(2),
        make_image(3, truth=[CAT], found=[(*CAT, 0.2)], crowds=[0]),
    ]
    truth, found = zip(*pairs, strict=True)
    first, second, third = score_images(match_detections(truth, found, label_map), (0.1, 0.5, 0.5))
    assert first == ImageScore(num_true=1, num_false=1, num_missed=1)
    assert first.F1 == 0.5  # 2 x 1 / (2 x 1 + 1 + 1)
    assert second == ImageScore(num_true=0, num_false=0, num_missed=0)
    assert second.F1 == 1
    assert third == second  # detections on a crowd are ignored


def test_changes_are_sorted_from_the_greatest_gain_to_the_greatest_loss():
    good, middle, bad = (ImageScore(num_true=true, num_false=0, num_missed=2 - true) for true in (2, 1, 0))
    changes = find_changes([good, middle, bad, good], [good, bad, good, bad])
    assert [change.image_index for change in changes] == [3, 1, 2]
    assert [round(change.gain, 3) for change in changes] == [1, 0.667, -1]
