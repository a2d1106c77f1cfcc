from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module import self_test
from detloom.trainer_module.self_test import run_self_test
from detloom.trainer_module.self_test_pictures import boxes_of, first_with_boxes, make_pictures

LABEL_MAP = LabelMap(((2, "red"), (5, "green")))


@pytest.fixture
def squares(tmp_path, make_example, write_records):
    """Eight pictures with a square that fills a quarter of it: 32 px, as the tiny detector's finest anchors."""
    random = np.random.default_rng(0)

    def picture(i):
        y, x = random.uniform(0, 0.5, 2)
        return make_example([(y, x, y + 0.5, x + 0.5)], [(2, 5)[i % 2]], name=str(i))

    return [str(write_records(tmp_path / "Split-train" / "data", [picture(i) for i in range(8)]))]


@pytest.mark.slow
def test_a_sound_detector_learns_its_pictures_by_heart(tiny_config, squares):
    result = run_self_test(tiny_config, LABEL_MAP, squares, learning_rate=5e-3)
    assert result.passed
    assert result.evaluation.metrics.AP50 > 0.9
    assert result.to_look_at == ()
    assert result.num_boxes_by_class == {"red": 4, "green": 4}
    assert result.box_sides_px == pytest.approx((32, 32, 32), abs=0.1)
    assert result.lines()[0].startswith("Self-test passed: AP50 ")


def test_one_that_does_not_learn_fails_and_the_loss_is_named(tiny_config, changed, squares):
    config = changed(tiny_config, {"train.debug": True})  # eager steps: tracing them takes longer than two
    result = run_self_test(config, LABEL_MAP, squares, learning_rate=1e-9, max_steps=2)
    assert not result.passed
    assert (result.num_steps, len(result.loss_curve)) == (2, 1)
    assert "the loss, which did not fall" in result.to_look_at[0]
    assert result.lines()[0].startswith("Self-test FAILED: AP50 0.0")


@pytest.mark.slow
def test_boxes_that_are_not_where_the_pictures_show_them_fail(tiny_config, squares, monkeypatch):
    """Training sees the boxes of other pictures, other ones each time, so that nothing can be learned by heart."""
    build = self_test.build_train_dataset

    def with_boxes_of_others(*args, **settings):
        def shuffle(batch):
            order = tf.random.shuffle(tf.range(tf.shape(batch["image"])[0]))
            moved = {name: tf.gather(batch[name], order) for name in ("boxes_yxyx_rel", "class_indices")}
            return {**batch, **moved}

        return build(*args, **settings).map(shuffle)

    monkeypatch.setattr(self_test, "build_train_dataset", with_boxes_of_others)
    result = run_self_test(tiny_config, LABEL_MAP, squares, learning_rate=5e-3, max_steps=120)
    assert not result.passed
    assert result.to_look_at


def evaluation_of(ap50, classes=()):
    rows = tuple(SimpleNamespace(name=name, AP50=value) for name, value in classes)
    return SimpleNamespace(metrics=SimpleNamespace(AP50=ap50, per_class=rows))


def looked_at(curve, ended="steps", num_unmatched=0, restored_share=None, classes=(), **facts):
    test = SimpleNamespace(
        loss_curve=curve,
        num_steps=curve[-1][0],
        restored_share=restored_share,
        trained=SimpleNamespace(parts=(SimpleNamespace(num_trained_parameters=10),)),
        detector=SimpleNamespace(network=SimpleNamespace(count_params=lambda: 100)),
        count_unmatched=lambda: num_unmatched,
    )
    known = {"num_boxes": 8, "num_small": 0, "max_boxes": 3, "max_allowed": 100}
    return list(self_test._to_look_at(test, evaluation_of(0.1, classes), SimpleNamespace(**{**known, **facts}), ended))


FELL = ((10, 2.0), (20, 0.1))


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"curve": ((10, 2.0), (20, 1.9))}, "did not fall (2 to 1.9): 10 of 100 parameters are trained"),
        ({"curve": ((10, 2.0), (20, float("nan"))), "ended": "not finite"}, "the loss, which became nan at step 20"),
        ({"curve": FELL}, "what lies behind the loss, which fell (2 to 0.1): model.post_processing"),
        ({"curve": FELL, "ended": "time"}, "the time, which was over while the loss still fell (2 to 0.1)"),
        ({"curve": FELL, "num_unmatched": 3}, "anchors: 3 of 8 boxes match none of them"),
        ({"curve": FELL, "classes": (("red", 0.9), ("green", 0.2), ("blue", -1))}, "the boxes of green, which"),
        ({"curve": FELL, "num_small": 5}, "box sizes: 5 of 8 are below 8 px"),
        ({"curve": FELL, "max_boxes": 120}, "max_number_of_boxes, which is 100: a picture has 120"),
        ({"curve": FELL, "restored_share": 0.915}, "the checkpoint: 91.5% of the parameters were restored"),
    ],
)
def test_what_to_look_at_is_said(facts, sentence):
    assert any(sentence in said for said in looked_at(**facts))


def test_what_ends_the_process_on_a_cpu_is_refused(tiny_config, changed, squares):
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("a GPU computes in bfloat16")
    with pytest.raises(InputError, match=r"train\.precision: got 'bfloat16' on a CPU"):
        run_self_test(changed(tiny_config, {"train.precision": "bfloat16"}), LABEL_MAP, squares)


def test_the_metric_of_a_class_that_made_pictures_lack_is_no_matter(tiny_config, changed):
    config = self_test._overfit_config(changed(tiny_config, {"eval.best_metric": "AP/cat"}), 1e-3, 2, 1)
    assert config.eval.best_metric == "AP"


def test_boxes_without_an_anchor_are_counted(tiny_config, tmp_path, make_example, write_records):
    """The finest anchors are squares of 32 px: a box of 32 x 32 overlaps one, a box of 8 x 8 none by half."""
    boxes = [(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.625, 0.625)]
    file = str(write_records(tmp_path / "data", [make_example(boxes, [2, 5])]))
    config = self_test._overfit_config(tiny_config, 1e-3, 2, 1)
    assert self_test._SelfTest(config, LABEL_MAP, file).count_unmatched() == 1


def test_pictures_are_the_first_that_have_a_box(tmp_path, make_example, write_records):
    records = [make_example(name="empty"), make_example([(0, 0, 1, 1)], crowds=[1], name="crowd")]
    records += [make_example([(0, 0, 1, 1)], name=str(i)) for i in range(20)]
    file = str(write_records(tmp_path / "data", records))
    assert first_with_boxes([file]) == records[2:18]
    with pytest.raises(InputError, match=r"Split-x: got no picture with a box"):
        first_with_boxes([str(write_records(tmp_path / "Split-x" / "data", records[:2]))])


def test_made_pictures_have_boxes_of_all_classes_that_lie_inside_and_apart():
    records = list(make_pictures(LABEL_MAP, (320, 240)))
    assert len(records) == 16
    assert records == list(make_pictures(LABEL_MAP, (320, 240)))
    found = [boxes_of(record) for record in records]
    assert {int(class_id) for _, class_ids in found for class_id in class_ids} == {2, 5}
    for boxes, _ in found:
        assert 1 <= len(boxes) <= 3
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert len({(y > 0.25, x > 0.25) for y, x in (boxes[:, :2] + boxes[:, 2:]) / 4}) == len(boxes)  # own quarters
