import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import Strategy, effective_strategy


def test_environment_overrides_the_run_file():
    in_file = Strategy(kind="multi_worker", communication="ring")
    assert effective_strategy(in_file, {}) == in_file
    assert effective_strategy(in_file, {"DETLOOM_STRATEGY": " "}) == in_file
    assert effective_strategy(in_file, {"DETLOOM_STRATEGY": "one_device"}) == Strategy(kind="one_device")


def test_environment_may_contain_a_mapping_and_is_named_if_invalid():
    text = "{kind: mirrored, devices: ['GPU:0', 'GPU:2']}"
    expected = Strategy(kind="mirrored", devices=("GPU:0", "GPU:2"))
    assert effective_strategy(Strategy(), {"DETLOOM_STRATEGY": text}) == expected
    with pytest.raises(InputError, match=r"^DETLOOM_STRATEGY: kind: got 'mirored', .*Did you mean 'mirrored'"):
        effective_strategy(Strategy(), {"DETLOOM_STRATEGY": "mirored"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "auto", "devices": ("GPU:0",)}, r"devices: got .*nothing with kind 'auto'"),
        ({"kind": "mirrored", "communication": "nccl"}, r"communication: got 'nccl', allowed: nothing with kind"),
        ({"kind": "multi_worker", "zone": "europe-west4-a"}, r"zone: got"),
        ({"kind": "mirrored", "devices": ("GPU:0", "GPU:0")}, r"devices: .*different names"),
    ],
)
def test_setting_of_another_kind_is_rejected(settings, message):
    with pytest.raises(InputError, match=message):
        Strategy(**settings)
