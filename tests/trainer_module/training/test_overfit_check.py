from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.training import overfit_check as self_test
from detloom.trainer_module.training.overfit_check import boxes_of, first_with_boxes, make_images, run_self_test

LABEL_MAP = LabelMap(((2, "red"), (5, "green")))


@pytest.fixture
def squares(tmp_path, make_example, write_records):
    """Eight images with a square over a quarter of it: 32 px, the size of the tiny detector's finest anchors."""
    random = np.random.default_rng(0)

    def image_of(i):
        y, x = random.uniform(0, 0.5, 2)
        return make_example([(y, x, y + 0.5, x + 0.5)], [(2, 5)[i % 2]], name=str(i))

    return [str(write_records(tmp_path / "Split-train" / "data", [image_of(i) for i in range(8)]))]


@pytest.mark.slow
def test_correct_detector_memorizes_its_images(one_level_config, squares):
    result = run_self_test(one_level_config, LABEL_MAP, squares, learning_rate=5e-3)
    assert result.passed
    assert result.evaluation.metrics.AP50 > 0.9
    assert result.suggestions == ()
    assert result.facts.num_boxes_by_class == {"red": 4, "green": 4}
    assert result.facts.box_sides_px == pytest.approx((32, 32, 32), abs=0.1)
    assert result.lines()[0].startswith("Self-test passed")


@pytest.mark.usefixtures("eager")
def test_detector_that_does_not_learn_fails_the_check(one_level_config, squares):
    result = run_self_test(one_level_config, LABEL_MAP, squares, learning_rate=1e-9, max_steps=2)
    assert not result.passed
    assert (result.num_steps, len(result.loss_curve)) == (2, 1)
    assert "did not fall" in result.suggestions[0]
    assert result.lines()[0].startswith("Self-test FAILED")


@pytest.mark.nightly
def test_misplaced_boxes_fail_the_check(one_level_config, squares, monkeypatch):
    """Training sees boxes of other images, different ones each time, so that nothing can be memorized."""
    build = self_test.build_train_dataset

    def with_boxes_of_others(*args, **settings):
        def shuffle(batch):
            order = tf.random.shuffle(tf.range(tf.shape(batch["image"])[0]))
            moved = {name: tf.gather(batch[name], order) for name in ("boxes_yxyx_rel", "class_indices")}
            return {**batch, **moved}

        return build(*args, **settings).map(shuffle)

    monkeypatch.setattr(self_test, "build_train_dataset", with_boxes_of_others)
    result = run_self_test(one_level_config, LABEL_MAP, squares, learning_rate=5e-3, max_steps=120)
    assert not result.passed
    assert result.suggestions


def evaluation_of(ap50, classes=()):
    rows = tuple(SimpleNamespace(name=name, AP50=value) for name, value in classes)
    return SimpleNamespace(metrics=SimpleNamespace(AP50=ap50, per_class=rows))


def suggestions_for(curve, ended="steps", num_unmatched=0, restored_share=None, classes=(), **facts):
    test = SimpleNamespace(
        loss_curve=curve,
        num_steps=curve[-1][0],
        restored_share=restored_share,
        trained=SimpleNamespace(parts=(SimpleNamespace(num_trained_parameters=10),)),
        detector=SimpleNamespace(network=SimpleNamespace(count_params=lambda: 100)),
        count_unmatched=lambda: num_unmatched,
    )
    known = {"num_boxes": 8, "num_small": 0, "max_boxes": 3, "max_allowed": 100}
    return list(
        self_test._find_suggestions(test, evaluation_of(0.1, classes), SimpleNamespace(**{**known, **facts}), ended)
    )


FELL = ((10, 2.0), (20, 0.1))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"curve": ((10, 2.0), (20, 1.9))}, "10 of 100 parameters"),
        ({"curve": ((10, 2.0), (20, float("nan"))), "ended": "not finite"}, "nan at step 20"),
        ({"curve": FELL}, "model.post_processing"),
        ({"curve": FELL, "ended": "time"}, "time limit"),
        ({"curve": FELL, "num_unmatched": 3}, "anchors: 3 of 8 boxes"),
        ({"curve": FELL, "classes": (("red", 0.9), ("green", 0.2), ("blue", -1))}, "boxes of green:"),
        ({"curve": FELL, "num_small": 5}, "box sizes: 5 of 8 are below 8 px"),
        ({"curve": FELL, "max_boxes": 120}, "max_number_of_boxes is 100"),
        ({"curve": FELL, "restored_share": 0.915}, "91.5%"),
    ],
)
def test_likely_causes_are_listed(facts, text):
    assert any(text in sentence for sentence in suggestions_for(**facts))


def test_bfloat16_on_a_cpu_is_refused(tiny_config, changed, squares):
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("a GPU supports bfloat16")
    with pytest.raises(InputError, match=r"train\.precision: got 'bfloat16'"):
        run_self_test(changed(tiny_config, {"train.precision": "bfloat16"}), LABEL_MAP, squares)


def test_check_uses_AP_whatever_the_configured_metric(tiny_config, changed):
    config = self_test._overfit_config(changed(tiny_config, {"eval.best_metric": "AP/cat"}), 1e-3, 2, 1)
    assert config.eval.best_metric == "AP"


@pytest.mark.usefixtures("eager")
def test_boxes_without_a_matching_anchor_are_counted(one_level_config, tmp_path, make_example, write_records):
    """The finest anchors are squares of 32 px: a box of 32 x 32 matches one, a box of 8 x 8 none (IoU below 0.5)."""
    boxes = [(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.625, 0.625)]
    file = str(write_records(tmp_path / "data", [make_example(boxes, [2, 5])]))
    config = self_test._overfit_config(one_level_config, 1e-3, 2, 1)
    assert self_test._SelfTest(config, LABEL_MAP, file).count_unmatched() == 1


def test_first_images_with_a_box_are_used(tmp_path, make_example, write_records):
    records = [make_example(name="empty"), make_example([(0, 0, 1, 1)], crowds=[1], name="crowd")]
    records += [make_example([(0, 0, 1, 1)], name=str(i)) for i in range(20)]
    file = str(write_records(tmp_path / "data", records))
    assert first_with_boxes([file]) == records[2:18]
    with pytest.raises(InputError, match="Split-x"):
        first_with_boxes([str(write_records(tmp_path / "Split-x" / "data", records[:2]))])


def test_generated_images_have_separate_boxes_of_all_classes():
    records = list(make_images(LABEL_MAP, (96, 128)))
    assert len(records) == 16
    assert records == list(make_images(LABEL_MAP, (96, 128)))
    found = [boxes_of(record) for record in records]
    assert {int(class_id) for _, class_ids in found for class_id in class_ids} == {2, 5}
    for boxes, _ in found:
        assert 1 <= len(boxes) <= 3
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert len({(y > 0.25, x > 0.25) for y, x in (boxes[:, :2] + boxes[:, 2:]) / 4}) == len(boxes)  # own quarters
