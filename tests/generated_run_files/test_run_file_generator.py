"""The generator reaches every setting, and `config check` accepts what it generates."""

import dataclasses
import sys
from pathlib import Path

import pytest

from detloom.schemas.reading.typed_dict import nested_dataclasses, type_hints
from detloom.schemas.run_file.run_file import RunFile

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import bases
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


def test_a_process_that_ends_without_an_outcome_has_failed(monkeypatch):
    monkeypatch.setattr(run_generated, "_send_outcome", print)
    outcome = run_generated.run_in_process("seed 0", {})
    assert (outcome.result, outcome.error) == ("failed", "The process ended with exit code 0.")
