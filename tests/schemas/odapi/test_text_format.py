import json

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.text_format import Message, leaves, merge_text, new_root


def read(*texts: str) -> Message:
    root = new_root("F")
    for i, text in enumerate(texts):
        merge_text(root, text, "F" if i == 0 else "override")
    return root


def values(*texts: str) -> dict[str, str]:
    """Return all written values by path."""
    return {path: text for path, _, text in leaves(read(*texts))}


def places(*texts: str) -> dict[str, str]:
    return {path: str(place) for path, place, _ in leaves(read(*texts))}


def dropped(*texts: str) -> list[tuple[str, str, str, str]]:
    return [(leaf.path, str(leaf.place), leaf.text, reason) for leaf, reason in read(*texts).dropped]


def fault(text: str) -> str:
    with pytest.raises(InputError) as error:
        read(text)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- syntax -----------------------------------------------------------------------------------------------------------


def test_lists_of_values_and_of_messages():
    text = """eval_config { metrics_set: ["a",
        "b"] metrics_set: 'c' }
        train_config { data_augmentation_options: [{ random_rotation90 {} },
            <>] }"""
    assert values(text) == {
        "eval_config.metrics_set": '["a", "b", "c"]',
        "train_config.data_augmentation_options[0].random_rotation90": "{}",
        "train_config.data_augmentation_options[1]": "{}",
    }
    assert places(text)["train_config.data_augmentation_options[1]"] == "F:4"
    lines = [value.place.line for value in read(text).values["eval_config"][0].values["metrics_set"]]
    assert lines == [1, 2, 2]


def test_empty_list_is_reported():
    reported = ("eval_config.metrics_set", "F:2", "[]", "an empty list sets nothing")
    assert dropped("eval_config {\n metrics_set: [] }") == [reported]


def test_unknown_extension_keeps_its_fields():
    text = "[a.b.c] { x: 1 x: Y s: 'q' 'r' m { n: -2.5 } m: < > l: [1, 2] }"
    assert values(text) == {
        "[a.b.c].x": "[1, Y]",
        "[a.b.c].s": '"qr"',
        "[a.b.c].m.n": "-2.5",
        "[a.b.c].m[1]": "{}",
        "[a.b.c].l": "[1, 2]",
    }


def test_every_value_has_the_line_of_its_field():
    text = "model {\n ssd {\n  num_classes:\n   3\n }\n}\n\ntrain_config { num_steps: 1 }"
    assert places(text) == {"model.ssd.num_classes": "F:3", "train_config.num_steps": "F:8"}


# --- merging, as text_format.Merge ------------------------------------------------------------------------------------


def test_last_of_two_values_counts():
    text = "train_config { num_steps: 1\n num_steps: 2 }"
    assert values(text) == {"train_config.num_steps": "2"}
    assert dropped(text) == [("train_config.num_steps", "F:1", "1", "overwritten at F:2")]


def test_another_member_of_a_oneof_replaces_the_first():
    text = """train_config { optimizer {
        adam_optimizer { epsilon: 1 learning_rate {} }
        use_moving_average: false
        momentum_optimizer {} } }"""
    assert values(text) == {
        "train_config.optimizer.use_moving_average": "false",
        "train_config.optimizer.momentum_optimizer": "{}",
    }
    reason = "replaced by momentum_optimizer at F:4"
    assert dropped(text) == [
        ("train_config.optimizer.adam_optimizer.epsilon", "F:2", "1", reason),
        ("train_config.optimizer.adam_optimizer.learning_rate", "F:2", "{}", reason),
    ]


def test_override_is_merged_over_the_file():
    texts = ("train_config { num_steps: 1 batch_size: 2 }", "\ntrain_config { num_steps: 5 }")
    assert values(*texts) == {"train_config.num_steps": "5", "train_config.batch_size": "2"}
    assert places(*texts)["train_config.num_steps"] == "override:2"
    assert dropped(*texts) == [("train_config.num_steps", "F:1", "1", "overwritten at override:2")]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_config {\n num_stebs: 1 }", "F:2: train_config.num_stebs: unknown field of TrainConfig. Did you mean"),
        (
            "model { ssd { feature_extractor {\n batch_norm_trainable: true } } }",
            "F:2: model.ssd.feature_extractor.batch_norm_trainable: unknown field of SsdFeatureExtractor. It was",
        ),
        ("modle {}", "F:1: modle: unknown field of the file. Did you mean 'model'?"),
        ("model {\n ssd {\n", "F:2: model.ssd: got the end of the text, allowed: '}' to close the message from F:2."),
        (
            "model < ssd { >",
            "F:1: model.ssd: got '>', allowed: the name of a field, or the end of the message from F:1",
        ),
        ("}", "F:1: got '}', allowed: the name of a field."),
        ("model: 3", "F:1: model: got '3', allowed: '{'."),
        ("train_config { num_steps 3 }", "F:1: train_config.num_steps: got '3', allowed: ':' and a value."),
        ("train_config { num_steps: }", "F:1: train_config.num_steps: got '}', allowed: a whole number from 0 to"),
        ("train_config { num_steps: 1.0 }", "F:1: train_config.num_steps: got '1.0', allowed: a whole number"),
        ("train_config { num_steps: -1 }", "got '-1', allowed: a whole number from 0 to 4294967295."),
        ("train_config { replicas_to_aggregate: 2147483648 }", "a whole number from -2147483648 to 2147483647"),
        ("train_config { gradient_clipping_by_norm: 1e39 }", "got '1e39', allowed: a number"),
        ("train_config { gradient_clipping_by_norm: 'a' }", "got \"'a'\", allowed: a number"),
        ("train_config { use_bfloat16: yes }", "got 'yes', allowed: true or false."),
        ("train_config { fine_tune_checkpoint: V2 }", "got 'V2', allowed: UTF-8 text in quotes"),
        ("train_config { fine_tune_checkpoint: 'a\nb' }", 'F:1: train_config.fine_tune_checkpoint: got "\'a", allowed'),
        ("train_config { fine_tune_checkpoint: '\\377' }", "allowed: UTF-8 text in quotes"),
        ("train_config { fine_tune_checkpoint_version: V22 }", "allowed: UNKNOWN, V1, V2. Did you mean 'V2'?"),
        ("train_config { fine_tune_checkpoint_version: 7 }", "got '7', allowed: UNKNOWN, V1, V2."),
        ("eval_config { metrics_set: ['a' 'b' }", "F:1: eval_config.metrics_set: got '}', allowed: ',' or ']'."),
        ("train_config [{}]", "F:1: train_config: got '[', allowed: '{'."),
        ("model { [a.b] {} }", "F:1: model.[a.b]: DetectionModel "),
        ("[a.b", "F:1: got the end of the text, allowed: ']' after the name of an extension."),
        ("[] {}", "F:1: got '[]', allowed: the name of an extension, such as [detloom.overrides]."),
        ("[a.b] }", "F:1: [a.b]: got '}', allowed: ':' and a value, or '{'."),
        ("\n\n model {\0}", "F:3: got a NUL character, allowed: a text file."),
        ("[a] {" + " m {" * 64, "F:1: got more than 64 nested messages, allowed: at most 64."),
    ],
)
def test_error_is_one_line_with_file_and_line(text, message):
    assert message in fault(text)
    assert fault(text).startswith("F:")


@pytest.mark.parametrize(
    "word", ["9" * 5000, "x" * 5000, "'" + "x" * 5000, "{" * 100_000, "[" * 100_000, "<{" * 50_000]
)
def test_error_for_a_long_or_deep_text_is_short(word):
    assert len(fault(f"train_config {{ num_steps: {word}")) < 300
    assert len(fault(f"[a] {{ b: {word}")) < 300


@pytest.mark.parametrize(
    "text", ["NAME: 1", "model { NAME {} }", "[NAME] {}", "[NAME", "[a] { NAME: 1 }", "[a 'NAME']"]
)
def test_error_for_a_long_name_is_short(text):
    assert len(fault(text.replace("NAME", "n" * 100_000))) < 300


def test_length_of_paths_is_limited():
    # "[a]" and 9 names of 32 characters with their dots are 300 characters
    name = "n" * 32
    assert len(next(iter(values("[a] {" + f"{name} {{" * 9 + "}" * 10)))) == 300
    assert f"F:1: got the name '{name}x', allowed: at most 300" in fault(
        "[a] {" + f"{name} {{" * 8 + f"{name}x {{}}" + "}" * 9
    )


@pytest.mark.parametrize(
    "text",
    [
        "eval_config { metrics_set: [%s'a'] }" % ("'a', " * 10_000),
        "train_config {%s}" % ("num_steps: 1 " * 10_000),
        "train_config {%s}" % ("data_augmentation_options {} " * 10_000),
        "[a] {%s}" % ("x: 1 " * 10_001),
    ],
    ids=["list", "twice", "messages", "extension"],
)
def test_number_of_values_is_limited(text):
    assert "got more than 10000 values in this text, allowed: at most 10000." in fault(text)


@pytest.mark.parametrize("text", ["\x1b[31m", "model { \x1b", "train_config { num_steps: '\x1b\x9b' }", "[a\x1b]"])
def test_errors_contain_no_control_characters(text):
    assert fault(text).isprintable()


def test_empty_text_sets_nothing_and_shown_text_is_valid_json():
    assert values("") == values("\n\n") == values("# only a comment") == {}
    assert json.loads(values('train_config { fine_tune_checkpoint: "a\\n\\"é" }').popitem()[1]) == 'a\n"é'
