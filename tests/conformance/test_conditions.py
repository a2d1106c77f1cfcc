import pytest
from conformance_driver.conditions import evaluate
from conformance_driver.errors import TaskRefused

EXECUTOR_INPUT = {
    "inputs": {
        "artifacts": {
            "decision": {"artifacts": [{"uri": "gs://b/k", "metadata": {"train": 1.0, "reason": "new span"}}]}
        }
    }
}
TRAIN = "inputs.artifacts['decision'].artifacts[0].metadata['train']"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f"({TRAIN} == 1.0)", True),
        (f"!(({TRAIN} == 1.0))", False),
        (f"({TRAIN} == 0.0) || ({TRAIN} > 0.5)", True),
        (f"({TRAIN} == 1.0) && ({TRAIN} < 0.5)", False),
        ("inputs.artifacts['decision'].artifacts[0].metadata['reason'] == 'new span'", True),
        ("inputs.artifacts['decision'].artifacts[0].uri != 'gs://b/k'", False),
    ],
)
def test_conditions_of_our_compiler_are_evaluated(condition, expected):
    assert evaluate(condition, EXECUTOR_INPUT) is expected


def test_and_has_precedence_over_or():
    assert evaluate(f"{TRAIN} == 1.0 || {TRAIN} == 1.0 && {TRAIN} == 0.0", EXECUTOR_INPUT)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("inputs.artifacts['model'].artifacts[0].uri == 'x'", "no such key: 'model'"),
        ("inputs.artifacts['decision'].artifacts[1].uri == 'x'", r"no such key: 1"),
        (f"{TRAIN} == 1", "'1'"),  # metadata are doubles
        (f"{TRAIN} == '1'", "no such overload"),
        (TRAIN, "return type is not bool"),
        ("size(inputs.artifacts) > 0.0", "'size' is not supported"),
        (f"{TRAIN} + 1.0 == 2.0", "cannot be read"),
        (f"({TRAIN} == 1.0", r"'\)' is missing"),
    ],
)
def test_anything_else_is_refused_by_name(condition, message):
    with pytest.raises(TaskRefused, match=message):
        evaluate(condition, EXECUTOR_INPUT)
