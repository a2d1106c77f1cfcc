"""Texts shown by reports and errors: no secrets, no long texts, no unprintable characters."""

from collections.abc import Callable

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport


@pytest.fixture
def shown(parse: Callable[..., PipelineConfigReport]) -> Callable[[str], list[str]]:
    """Return a function that lists all texts of a report."""

    def texts(text: str) -> list[str]:
        report = parse(text)
        notes = (*report.mapped, *report.ignored, *report.refused)
        return [part for note in notes for part in vars(note).values()]

    return texts


@pytest.mark.parametrize(
    "text",
    [
        "train_config { fine_tune_checkpoint: 'https://me:hunter2@host/x' fine_tune_checkpoint: 'a' }",
        "train_input_reader { tf_record_input_reader { input_path: ['gs://b/c?token=hunter2', 'b'] } }",
        "model { ssd { feature_extractor { type: 'http://me:hunter2@host' } } }",
        "train_input_reader { name: 's3://me:hunter2@host' }",
        "[acme.store] { password: 'hunter2' login { api_key: hunter2 x: 1 } }",
        """[detloom.overrides] { set: 'train.password="hunter2"' }""",
        """[detloom.overrides] { set: 'train.fine_tune_checkpoint="https://me:hunter2@host"' }""",
    ],
)
def test_secrets_are_hidden_in_reports(text, shown):
    assert not [part for part in shown(text) if "hunter2" in part]
    assert [part for part in shown(text) if "(hidden)" in part]


@pytest.mark.parametrize(
    "text",
    [
        "train_config { num_steps: 'https://me:hunter2@host' }",
        """[detloom.overrides] { set: 'train.password="hunter2' }""",
        """[detloom.overrides] { set: 'train.x=https://me:hunter2@host' }""",
    ],
)
def test_secrets_are_hidden_in_errors(text, parse):
    with pytest.raises(InputError, match=r"\(hidden\)") as error:
        parse(text)
    assert "hunter2" not in str(error.value)


def test_long_list_is_cut(parse):
    paths = ", ".join(['"0123456789"'] * 1000)
    text = f"train_input_reader {{ tf_record_input_reader {{ input_path: [{paths}] }} }}"
    (note,) = (note for note in parse(text).mapped if note.path.endswith("input_path"))
    # 120 characters: the bracket, 8 items of 14 characters with their commas, and 7 of the ninth
    assert note.value == "[" + '"0123456789", ' * 8 + '"012345' + "..."
    assert len(parse(text).located.data["train_input"]["input_path"]) == 1000


@pytest.mark.parametrize(
    "text",
    [
        f"model {{ ssd {{ feature_extractor {{ type: '{'a' * 100_000}' }} }} }}",
        f"train_config {{ fine_tune_checkpoint: '{'a' * 100_000}' fine_tune_checkpoint: 'b' }}",
        f"[{'a' * 250}] {{ {'b' * 40}: {'c' * 100_000} }}",
        f'[detloom.overrides] {{ set: "{"a" * 100_000}=[{"1," * 10_000}1]" }}',
    ],
)
def test_long_text_is_cut(text, shown):
    assert max(map(len, shown(text))) < 700  # mostly the names of all feature extractors


def test_unprintable_characters_are_escaped(parse, shown):
    text = "train_config { fine_tune_checkpoint: '\x1b[2J\x9b\u2028\u202e' } eval_config { eval_master: '\\033[1m\\n' }"
    assert all(part.isprintable() for part in shown(text))
    (note,) = (note for note in parse(text).ignored if note.path == "eval_config.eval_master")
    assert note.value == r'"\u001b[1m\n"'


def test_every_empty_step_is_reported(parse):
    text = "train_config {" + "data_augmentation_options {}\n" * 1000 + "}"
    missing = [note for note in parse(text).refused if note.path.startswith("train_config.data_augmentation_options")]
    assert len(missing) == 1000
