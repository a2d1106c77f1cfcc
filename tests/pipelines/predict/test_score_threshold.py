import json

import pytest

from detloom.pipelines.predict.score_threshold import choose_min_score


@pytest.fixture
def write_card(tmp_path):
    """Return a function that writes a text into the model card of the model in `tmp_path`."""

    def write(text):
        (tmp_path / "assets.extra").mkdir()
        (tmp_path / "assets.extra" / "model_card.json").write_text(text)

    return write


def card_with(score):
    return json.dumps({"evaluation": {"best_f1": {"min_score": score, "precision": 0.9, "recall": 0.8}}})


def test_score_of_the_model_card_is_rounded_down_and_its_origin_printed(tmp_path, write_card, capsys):
    write_card(card_with(0.38796))
    assert choose_min_score(None, tmp_path) == 0.387
    assert "0.387" in (error := capsys.readouterr().err)
    assert str(tmp_path / "assets.extra" / "model_card.json") in error


def test_classes_whose_own_score_is_much_lower_are_named(tmp_path, write_card, capsys):
    rows = [
        {"name": name, "best_f1": {"min_score": score, "precision": 0.9, "recall": 0.8}}
        for name, score in (("cat", 0.5), ("dog", 0.21))
    ]
    best = {"min_score": 0.5, "precision": 0.9, "recall": 0.8}
    write_card(json.dumps({"evaluation": {"best_f1": best, "per_class": rows}}))
    assert choose_min_score(None, tmp_path) == 0.5
    error = capsys.readouterr().err
    assert "'dog' 0.21." in error
    assert "--min-score 0.21" in error
    assert "cat" not in error


def test_given_score_wins_and_without_a_card_there_is_a_default(tmp_path, write_card, capsys):
    assert choose_min_score(None, tmp_path) == 0.5
    assert "0.5" in capsys.readouterr().err
    write_card(card_with(0.38796))
    assert choose_min_score(0.0, tmp_path) == 0.0
    assert capsys.readouterr().err == ""


EVALUATIONS = ("null", '{"best_f1": null}')
TEXTS = ("", "[]", "[" * 9**6, card_with("high"), card_with(7.0))


@pytest.mark.parametrize("text", [*TEXTS, *(f'{{"evaluation": {each}}}' for each in EVALUATIONS)])
def test_card_without_a_score_is_no_error(tmp_path, write_card, text):
    write_card(text)
    assert choose_min_score(None, tmp_path) == 0.5
