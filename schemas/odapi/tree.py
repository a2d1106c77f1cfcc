"""What the dataclasses of the configuration tree say about themselves, as reader and writer need it."""

import dataclasses
import functools
import typing
from typing import Any

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.field_docs import nested_dataclasses
from detloom.schemas.odapi.rules import NOTHING
from detloom.schemas.typed_dict import dataclass_members, is_untagged, to_dict, type_hints


def item_type(annotation: Any) -> Any:
    """Of a tuple, the type of its items; otherwise the annotation itself."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else annotation


@functools.cache
def tagged_classes() -> frozenset[type]:
    """Dataclasses whose plain form has a "type" key, because they stand in unions."""
    annotations = (each for cls in nested_dataclasses(TrainEvalConfig) for each in type_hints(cls).values())
    unions = (dataclass_members(item_type(annotation)) for annotation in annotations)
    tagged = (member for members in unions if len(members) > 1 for member in members)
    return frozenset(member for member in tagged if not is_untagged(member))


def allowed_texts(cls: type, name: str) -> tuple[str, ...]:
    """What a field of a dataclass is limited to; empty if it is not."""
    annotation = item_type(type_hints(cls).get(name))
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def fields_without_default(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING)


def plain_default(cls: type, name: str) -> Any:
    """A field's default as plain data; NOTHING if it has none."""
    default = next(field.default for field in dataclasses.fields(cls) if field.name == name)
    if default is dataclasses.MISSING:
        return NOTHING
    return list(default) if isinstance(default, tuple) else to_dict(default)
