import json
from dataclasses import replace

import pytest
import tensorflow as tf
import time_to_map
from time_to_map import steps_within
from tools.bccd_configs import NUM_CHECKPOINTS, our_config, peer_config
from tools.coco_scores import Score, score_files
from tools.comparable_settings import split_extension
from tools.time_to_map_report import RunScores, leads_at_their_checkpoints, value_at, write_report

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.odapi.pipeline_config import parse_pipeline_config


def make_run(system, seed, *aps):
    """Return the scores of a run with a checkpoint every 100 seconds."""
    scores = tuple(Score(step=10 * i, seconds=100.0 * i, AP=ap, AP50=ap) for i, ap in enumerate(aps, start=1))
    return RunScores(system=system, seed=seed, num_steps=10 * len(aps), others=0.0, unsaid=(), scores=scores)


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0.0), (50, 0.1), (100, 0.2), (150, 0.3), (200, 0.4), (900, 0.4)])
def test_values_between_checkpoints_are_interpolated_linearly(seconds, expected):
    assert value_at(make_run("ours", 0, 0.2, 0.4), "AP", seconds) == pytest.approx(expected)


def test_the_lead_is_our_worst_seed_minus_the_peers_best():
    runs = [
        make_run("ours", 0, 0.4, 0.5),
        make_run("ours", 1, 0.3, 0.6),
        make_run("zoo", 0, 0.1),
        make_run("zoo", 1, 0.2),
    ]
    assert list(leads_at_their_checkpoints(runs, "AP")) == [
        {"system": "zoo", "seconds": 100.0, "lead": pytest.approx(0.3 - 0.2)}
    ]


def test_the_report_states_the_spread_of_the_seeds(tmp_path, capsys):
    write_report([make_run("ours", 0, 0.1, 0.5), make_run("ours", 1, 0.3, 0.7)], tmp_path, {"minutes": 20})
    assert "ours: AP 0.600 at the end (0.500 to 0.700, 2 seeds)" in capsys.readouterr().out
    assert json.loads((tmp_path / "scores.json").read_text())["runs"][1]["scores"][0]["AP"] == 0.3
    assert (tmp_path / "AP.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("seconds", "first_seconds", "step_seconds", "expected"),
    [
        (1200, 30, 0.5, (2200, 200)),  # 50 + 1170 / 0.5 = 2390: ten checkpoints at multiples of 100
        (60, 20, 0.5, (130, 10)),  # 50 + 80
        (10, 30, 0.5, (50, 10)),  # not even time for the first 50
    ],
)
def test_the_peer_gets_as_many_steps_as_the_time_allows(seconds, first_seconds, step_seconds, expected):
    assert steps_within(seconds, first_seconds, step_seconds) == expected


def test_settings_that_the_format_lacks_are_removed_and_listed():
    text = 'model {\n}\n[detloom.overrides] {\n  set: "train.seed=1"\n  set: "a=\\"b\\""\n}\n'
    assert split_extension(text) == ("model {\n}\n", ["train.seed=1", 'a="b"'])
    assert split_extension("model {\n}\n") == ("model {\n}\n", [])


def test_half_the_time_halves_the_schedule(tmp_path):
    whole, half = our_config(tmp_path, 1, 20).train, our_config(tmp_path, 1, 10).train
    assert half.num_steps == pytest.approx(whole.num_steps / 2, abs=NUM_CHECKPOINTS / 2)
    assert half.optimizer.learning_rate.total_steps == half.num_steps


@pytest.mark.parametrize("minutes", [20, 7.3, 0.3, 0])
def test_there_are_ten_checkpoints_for_any_duration(minutes, tmp_path):
    train = our_config(tmp_path, 1, minutes).train
    assert train.checkpoint_every_n * NUM_CHECKPOINTS == train.num_steps


def write_run(folder, *, recipe="ours"):
    folder.mkdir()
    (folder / "trained.json").write_text(json.dumps({"num_steps": 10, "others": 0.0, "unsaid": [], "recipe": recipe}))
    (folder / "scores.json").write_text(json.dumps([{"step": 10, "seconds": 100.0, "AP": 0.5, "AP50": 0.9}]))


def test_the_report_includes_runs_of_earlier_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(time_to_map, "has_peer", lambda: False)
    for name in ("ours-0", "ours-10", "ours-2", "zoo-0"):
        write_run(tmp_path / name)
    (tmp_path / "same-0").mkdir()  # has not ended
    (tmp_path / "ours-notes").mkdir()
    task = time_to_map.Task(data=tmp_path, examples=tmp_path / "examples", minutes=20, recipe="ours")
    runs = time_to_map.run_all(task, ["ours", "zoo"], [0], tmp_path)
    assert [(run.system, run.seed) for run in runs] == [("ours", 0), ("ours", 2), ("ours", 10), ("zoo", 0)]


def test_an_incomparable_run_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(time_to_map, "run_once", lambda run, task: pytest.fail("trained"))
    write_run(tmp_path / "ours-0", recipe="of yesterday")
    task = time_to_map.Task(data=tmp_path, examples=tmp_path / "examples", minutes=20, recipe="of today")
    with pytest.raises(SystemExit, match=r"ours-0: .*--output"):
        time_to_map.run_all(task, ["ours"], [1], tmp_path)


def test_the_recipe_and_the_minutes_are_in_the_fingerprint(tmp_path, monkeypatch):
    fingerprints = {time_to_map.fingerprint(tmp_path, minutes) for minutes in (20, 20, 10)}
    config = our_config(tmp_path, 0, 20)
    changed = replace(config, train=replace(config.train, batch_size=4))
    monkeypatch.setattr(time_to_map, "our_config", lambda *_: changed)
    assert len(fingerprints | {time_to_map.fingerprint(tmp_path, 20)}) == 3


@pytest.mark.parametrize("system", ["zoo", "same"])
def test_the_peer_trains_our_architecture_at_our_batch_size(system, tmp_path):
    ours = our_config(tmp_path, 1, 20)
    text, _ = peer_config(system, ours, 500, tmp_path)
    theirs = parse_pipeline_config(text, "peer").located.data
    assert "detloom" not in text
    assert theirs["train"]["batch_size"] == ours.train.batch_size
    assert theirs["train"]["optimizer"]["learning_rate"]["total_steps"] == 500
    assert theirs["model"]["feature_extractor"]["depth_multiplier"] == ours.model.feature_extractor.depth_multiplier
    assert theirs["model"]["box_predictor"]["depth"] == ours.model.box_predictor.depth
    assert theirs["model"]["num_classes"] == 3


def test_detections_are_scored_by_image_and_step(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "data_tfrecord")) as writer:
        for _ in range(2):  # an image of 100 x 200 with a box of 20 x 40 pixels at its upper left
            example = tf.train.Example()
            feature = example.features.feature
            feature[keys.IMAGE_HEIGHT].int64_list.value.append(100)
            feature[keys.IMAGE_WIDTH].int64_list.value.append(200)
            for key, value in zip(keys.BOX_KEYS_YXYX, (0.0, 0.0, 0.2, 0.2), strict=True):
                feature[key].float_list.value.append(value)
            feature[keys.CLASS_ID].int64_list.value.append(1)
            writer.write(example.SerializeToString())
    found = [{"image_id": number, "category_id": 1, "bbox": [0, 0, 40, 20], "score": 0.9} for number in (1, 2)]
    (tmp_path / "found").mkdir()
    (tmp_path / "found/100.json").write_text(json.dumps(found))
    (tmp_path / "found/20.json").write_text(json.dumps(found[:1]))
    scores = list(score_files(tmp_path / "found", [5.0, 25.0], str(tmp_path / "*tfrecord*"), ("cell",)))
    # with half of the boxes found, precision is 1 up to a recall of 0.5: at 51 of COCO's 101 levels
    assert scores == [
        Score(step=20, seconds=5.0, AP=pytest.approx(51 / 101), AP50=pytest.approx(51 / 101)),
        Score(step=100, seconds=25.0, AP=pytest.approx(1.0), AP50=pytest.approx(1.0)),
    ]
