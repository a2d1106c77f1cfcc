"""Comparison with protobuf's own parser, with message classes built from fields.tsv."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from detloom.schemas.odapi.fields import ROOT, enum_values, message_types
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, parse_pipeline_config, read_pipeline_config
from detloom.schemas.odapi.text_format import Message, leaves, merge_text, new_root

CONFIGS = Path(__file__).parent.parent / "configs"
FieldProto = descriptor_pb2.FieldDescriptorProto


@functools.cache
def root_class() -> Any:
    """Build the message class of a file from all messages and enums of the inventory."""
    file = descriptor_pb2.FileDescriptorProto(name="odapi.proto", package="odapi", syntax="proto2")
    fields = [field for message in message_types().values() for field in message.fields.values()]
    for name in sorted(
        {field.type for field in fields if field.kind == "enum"}
    ):  # each enum in its own message, because several enums may have values of the same name
        enum = file.message_type.add(name=f"In_{flat(name)}").enum_type.add(name=flat(name))
        for value, number in enum_values(name).items():
            enum.value.add(name=value, number=number)
    for message in message_types().values():
        if message.name.startswith("["):
            continue
        added = file.message_type.add(name=flat(message.name))
        if message.extensible:
            added.extension_range.add(start=1000, end=2**29)
        oneofs = list(dict.fromkeys(field.oneof for field in message.fields.values() if field.oneof))
        for oneof in oneofs:
            added.oneof_decl.add(name=oneof)
        for field in sorted(
            message.fields.values(), key=lambda field: field.oneof
        ):  # keep the members of a oneof together
            made = added.field.add(name=field.name, number=field.number)
            made.label = FieldProto.LABEL_REPEATED if field.repeated else FieldProto.LABEL_OPTIONAL
            made.type = getattr(FieldProto, f"TYPE_{field.kind.upper()}")
            if field.kind == "message":
                made.type_name = f".odapi.{flat(field.type)}"
            elif field.kind == "enum":
                made.type_name = f".odapi.In_{flat(field.type)}.{flat(field.type)}"
            if field.oneof:
                made.oneof_index = oneofs.index(field.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"odapi.{ROOT}")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf 3


def flat(name: str) -> str:
    return name.replace(".", "_")


def read_both(*texts: str) -> tuple[Message, Any]:
    ours, theirs = new_root("F"), root_class()()
    for text in texts:
        merge_text(ours, text, "F")
        text_format.Merge(text, theirs, allow_unknown_extension=True)
    return ours, theirs


def set_fields(message: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all set fields in the form of `leaves`: single fields, repeated values, empty messages."""
    fields = message.ListFields()
    if not fields and path:
        yield path
    for field, value in fields:
        below = f"{path}.{field.name}" if path else field.name
        if field.message_type is None:
            yield below
        elif hasattr(value, "append") or hasattr(value, "add"):
            for i, each in enumerate(value):
                yield from set_fields(each, f"{below}[{i}]")
        else:
            yield from set_fields(value, below)


def assert_same(ours: Message, theirs: Any) -> None:
    """Compare values recursively; floats with 32 bits."""
    for name, values in ours.values.items():
        if name.startswith("["):
            continue
        field, found = theirs.DESCRIPTOR.fields_by_name[name], getattr(theirs, name)
        items = list(found) if message_types()[ours.type].fields[name].repeated else [found]
        assert len(items) == len(values), name
        for mine, other in zip(values, items, strict=True):
            if isinstance(mine, Message):
                assert_same(mine, other)
            elif field.enum_type is not None:
                assert field.enum_type.values_by_name[mine.value].number == other
            else:
                assert mine.value == (
                    pytest.approx(other, rel=1e-6, nan_ok=True) if isinstance(other, float) else other
                ), name


TEXTS = {
    "colon and comma": ["train_config: { num_steps: 3, batch_size: 4 }"],
    "angle brackets": ["train_config < num_steps: 3; batch_size: 4; >;"],
    "bases and comment": ["train_config {num_steps:0x3 batch_size:017} # a comment"],
    "white space": ["\r\ntrain_config\t{\r\nnum_steps :\n3\nbatch_size: 4294967295}"],
    "merged": ["eval_config { batch_size: 2 metrics_set: 'a' } eval_config{metrics_set:'b'}"],
    "words": ["train_config { use_bfloat16: False fine_tune_checkpoint_version: V2 gradient_clipping_by_norm: nan }"],
    "numbers": ["train_config { use_bfloat16: 0 gradient_clipping_by_norm: -1e-3f startup_delay_steps: -inf }"],
    "twice": ["train_config { num_steps: 1 num_steps: 2 } train_config { batch_size: 3 }"],
    "oneof": [
        "model { ssd { num_classes: 3 } center_net { num_classes: 1 } ssd { freeze_batchnorm: t } }",
        "train_config { optimizer { adam_optimizer { epsilon: 1 } momentum_optimizer {} adam_optimizer {} } }",
    ],
    "appended": ["eval_config { metrics_set: ['a', 'b'] }", "eval_config { metrics_set: 'c' } eval_input_reader {}"],
    "values": [
        r"""train_config { gradient_clipping_by_norm: -.5e-1f batch_size: 0x1F replicas_to_aggregate: -017
        use_bfloat16: True; fine_tune_checkpoint: 'a"' "\x41\101\t\303\251é" fine_tune_checkpoint_version: 2,
        keep_checkpoint_every_n_hours: inf data_augmentation_options: [<random_rotation90 {}>, {}] }"""
    ],
    **{name: [(CONFIGS / name).read_text()] for name in ("fpnlite.config", "efficientdet.config")},
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_parsed_text_equals_that_of_protobuf(texts):
    ours, theirs = read_both(*texts)
    assert_same(ours, theirs)
    assert sorted(leaf.path for leaf in leaves(ours)) == sorted(set_fields(theirs))


@pytest.mark.parametrize("name", ["fpnlite.config", "efficientdet.config"])
def test_protobuf_reads_a_written_file(name):
    config = read_pipeline_config(CONFIGS / name)
    ours, theirs = read_both(format_pipeline_config(config))
    assert_same(ours, theirs)
    assert theirs.train_config.num_steps == config.train.num_steps
    assert theirs.model.ssd.feature_extractor.conv_hyperparams.batch_norm.decay == pytest.approx(
        config.model.feature_extractor.conv_hyperparams.batch_norm.decay
    )
    assert theirs.train_config.fine_tune_checkpoint_version == 2
    assert theirs.model.ssd.similarity_calculator.HasField("iou_similarity")


def test_each_field_of_each_zoo_file_is_in_exactly_one_list(reference_dir: Path):
    paths = sorted((reference_dir / "zoo_configs").glob("*.config"))
    assert len(paths) == 40
    for path in paths:
        ours, theirs = read_both(path.read_text())
        assert_same(ours, theirs)
        report = parse_pipeline_config(path.read_text(), path.name)
        notes = [*report.mapped, *report.ignored, *report.refused]
        assert not [note.path for note in notes if note.value == "(missing)"]
        listed = [note.path for note in notes if note.value != "{...}"]
        known = [field for field in listed if ".[" not in field]
        with_extension = {field.partition(".[")[0] for field in listed if ".[" in field}  # empty for protobuf
        assert sorted([*known, *with_extension]) == sorted(set_fields(theirs)), path.name
