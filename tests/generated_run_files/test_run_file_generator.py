"""The generator reaches every setting, and `config check` accepts what it generates."""

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from detloom.schemas.reading.typed_dict import nested_dataclasses, type_hints
from detloom.schemas.run_file.run_file import RunFile

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import bases
import pairwise
import run_file_generator as generator
import run_generated


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return bases.write_tiny_data(tmp_path_factory.mktemp("tiny") / "data")


def test_tables_name_existing_settings():
    assert generator.unknown_names() == set()


def test_every_setting_is_drawn_or_excluded_with_a_reason():
    """A new setting of a type without values fails here; other new settings are drawn without a change."""
    settings, draws = generator.all_settings(), generator.Generator(0)
    for cls in nested_dataclasses(RunFile):
        for field in dataclasses.fields(cls):
            name, annotation = f"{cls.__name__}.{field.name}", type_hints(cls)[field.name]
            is_section = dataclasses.is_dataclass(annotation)  # its fields are drawn
            if name in settings - set(generator.KEPT) and not is_section:
                draws.draw(annotation, name)  # raises LookupError
    assert all(generator.EXCLUDED.values())


@pytest.mark.parametrize("detector", [*bases.OF_BOXES, *bases.OF_SHAPES])
def test_a_generated_file_is_valid_and_follows_from_its_seed(detector, data):
    base = bases.base_of(detector, data)
    plain = generator.Generator(1).generate(base)
    assert generator.complete(plain) == plain
    assert plain != base
    assert plain == generator.Generator(1).generate(base)


def test_advice_of_a_warning_is_accepted(data):
    base = bases.base_of("ssd_mobilenet_v2_fpnlite_320x320", data)
    base["train"]["learning_rate_batch_size"] = 8
    seen = set()
    for seed in range(20):
        plain, text = generator.Generator(seed).follow_advice(base)
        assert generator.complete(plain)
        seen.add(text.partition("=")[0].removeprefix("--set "))
    assert seen == {
        "train.optimizer.learning_rate.learning_rate",
        "train.scale_learning_rate",
        "train.learning_rate_batch_size",
    }


def test_quoted_advice_is_followed(data):
    base = bases.base_of("ssd_mobilenet_v2_fpnlite_320x320", data)
    base["train"]["fine_tune_checkpoint"] = "PATH_TO_BE_CONFIGURED"
    plain, text = generator.Generator(0).follow_advice(base)
    assert text == "--set 'train.fine_tune_checkpoint=\"\"'"
    assert plain["train"]["fine_tune_checkpoint"] == ""


def test_members_of_a_union_share_the_options_of_their_common_fields(data):
    base = bases.base_of("ssd_mobilenet_v2_320x320", data)
    rate = base["train"]["optimizer"]["learning_rate"]
    changed = generator.complete(
        generator.replaced(base, {("train", "optimizer"): {"type": "AdamOptimizer", "learning_rate": rate}})
    )
    new = {(setting.rpartition(".")[2], option) for setting, option in generator.choices_in(changed)}
    old = {(setting.rpartition(".")[2], option) for setting, option in generator.choices_in(base)}
    assert new - old == {("optimizer", "AdamOptimizer")}
    (option,) = (each for each in generator.choices_in(changed) if each.setting.endswith(".learning_rate"))
    assert option in generator.choices_in(base)
    assert generator.places_of(base, option) == [("train", "optimizer", "learning_rate")]


def test_the_outcomes_of_a_log_are_those_of_its_complete_lines(tmp_path):
    done = run_generated.Outcome(name="seed 0", result="decision", error="", seconds=1.0, settings={})
    log = tmp_path / "log.jsonl"
    assert run_generated.read_outcomes(log) == []
    log.write_text(run_generated._format(done) + '{"name": "se')  # the process was killed
    assert run_generated.read_outcomes(log) == [done]
    assert list(run_generated.run_all([("seed 0", {})], log)) == [done]  # nothing is run again
    assert log.read_text() == run_generated._format(done)


def test_a_process_that_ends_without_an_outcome_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_generated, "_send_outcome", print)
    (outcome,) = run_generated.run_all([("seed 0", {})], tmp_path / "log.jsonl")
    assert (outcome.result, outcome.error) == ("failed", "The process ended with exit code 0.")


@pytest.mark.nightly
def test_files_that_cover_all_pairs_of_options_have_every_pair_of_the_random_ones(data, monkeypatch):
    monkeypatch.setattr(pairwise, "NUM_RANDOM", 4)
    made = []

    def generate(seed):
        name = "ssd_mobilenet_v2_320x320"
        made.append(generator.Generator(seed).generate(bases.base_of(name, data)))
        return made[-1]

    cover = pairwise.cover_all_pairs(generate)
    assert all(generator.complete(plain) for plain in cover.files)
    choices = [generator.choices_in(plain) for plain in cover.files]
    trained = [each for each in choices if not any(map(pairwise.stops, each))]
    for random in map(generator.choices_in, made):
        is_stopped = any(map(pairwise.stops, random))  # then only the pairs with a stopping option count
        for pair in itertools.combinations(random, 2):
            if any(map(pairwise.stops, pair)) or not is_stopped:
                assert any(set(pair) <= each for each in (choices if is_stopped else trained))
    assert cover.num_pairs + cover.num_excluded == cover.num_options * (cover.num_options - 1) // 2
