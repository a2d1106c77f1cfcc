import re
from pathlib import Path

import pytest

from detloom.schemas.odapi.fields import OVERRIDES, enum_values, message_types


def test_inventory_contains_all_messages_and_fields():
    messages = {name: message for name, message in message_types().items() if name != OVERRIDES}
    assert len(messages) == 165
    assert sum(len(message.fields) for message in messages.values()) == 847
    assert sum(field.deprecated for message in messages.values() for field in message.fields.values()) == 11
    extensible = {name for name, message in messages.items() if message.extensible}
    assert extensible == {"TrainEvalPipelineConfig", "GraphRewriter", "ExternalInputReader"}


def test_numbers_and_names_are_unique_in_a_message_and_types_exist():
    for message in message_types().values():
        assert len({field.number for field in message.fields.values()}) == len(message.fields)
        for field in message.fields.values():
            if field.kind == "message":
                assert field.type in message_types()
            elif field.kind == "enum" and not field.repeated:
                assert field.default in enum_values(field.type)


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        ("TrainConfig", "batch_size", 32),
        ("TrainConfig", "startup_delay_steps", 15.0),
        ("TrainConfig", "fine_tune_checkpoint_version", "V1"),
        ("Optimizer", "use_moving_average", True),
        ("BidirectionalFeaturePyramidNetworks", "combine_method", "fast_attention"),
        ("SigmoidFocalClassificationLoss", "alpha", 0.0),  # none is declared: the type's zero
        ("CenterNet.DeepMACMaskEstimation", "mask_num_subsamples", -1),
    ],
)
def test_defaults(message, field, default):
    found = message_types()[message].fields[field].default
    assert (found, type(found)) == (default, type(default))


def test_inventory_equals_the_reference_table(reference_dir: Path):
    table = (reference_dir / "odapi_config_fields.md").read_text()
    row = re.compile(
        r"^\| (\d+) \| (\w+)( \(deprecated\))? \| (optional|repeated) \| ([^|]+) \| ([^|]+) \| (\w*) ?\|$", re.M
    )
    sections = re.split(r"^### (\S+).*$", table.split("## enums")[0], flags=re.M)[1:]
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        wanted = [
            (int(number), field, label == "repeated", kind.removeprefix("enum ").rpartition(".")[2], bool(flag), oneof)
            for number, field, flag, label, kind, _, oneof in row.findall(section)
        ]
        fields = message_types()[name].fields.values()
        found = [(f.number, f.name, f.repeated, f.type.rpartition(".")[2], f.deprecated, f.oneof) for f in fields]
        assert found == wanted, name
