"""Rules for fields of the Object Detection API (mapped, ignored or refused), and the report on the fields of a file."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.fields import message_types
from detloom.schemas.odapi.text_format import Message
from detloom.schemas.reading.overrides import Located
from detloom.schemas.reading.typed_dict import dataclass_members, is_untagged, nested_dataclasses, to_dict, type_hints

NOTHING: Any = object()  # no value, where None would be a value
IN_FASTER_RCNN = ".faster_rcnn."  # part of the paths of the messages in a Faster R-CNN


class UnsupportedError(Exception):
    """Raised by `Mapped.read` for a value without a counterpart; the message lists the supported values."""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """The field has a counterpart in the configuration tree.

    Attributes:
        key: dotted key relative to the key of the field's message; "" is the key of the message.
        read: converts the value in the text to the tree's value; None keeps it. May raise UnsupportedError.
        write: converts the plain tree at the message's key to the value in the text, or returns None to write nothing.
            Without it, the value at `key` is written.
        implied: value of an omitted field, if it differs from the tree's default; for a message, the values of its
            fields.
        adds: for a message: values that its presence adds at `key` if they are not written.
        note: remark for the documentation.
    """

    key: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    implied: Any = NOTHING
    adds: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """The field does not change results in detloom, or has no effect in the Object Detection API's TF2 loop either.

    Attributes:
        constant: value in written files, if the Object Detection API needs the field.
    """

    reason: str
    constant: Any = NOTHING


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The field would change the result and is not supported.

    Attributes:
        harmless: a value without effect, with which the field is ignored.
    """

    reason: str
    harmless: Any = NOTHING


Rule = Mapped | Ignored | Refused


@dataclass(frozen=True, kw_only=True)
class Depends:
    """A rule that depends on other fields of its message.

    Attributes:
        usual: the rule used by documentation and writer.
        when: for the documentation: the conditions for another rule.
        choose: returns the rule for the field's message.
    """

    usual: Rule
    when: str
    choose: Callable[[Message], Rule]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The rules of one message of the Object Detection API.

    Attributes:
        fields: the rules that are not implied. A field without a rule is mapped to the field of `makes` with its name;
            as a member of a oneof in a message without `makes`, to the key of that message.
        makes: dataclass built from the values, if its name is not the message's; None if the values belong to another
            dataclass.
        choice: oneof of which one member must be set.
        otherwise: plain tree if no member is set, if that is allowed.
        required: fields that the Object Detection API requires although the tree has a default.
        single: repeated fields of which only the first value is read, each with the reason.
    """

    fields: Mapping[str, Rule | Depends] = field(default_factory=dict)
    makes: type | None = None
    choice: str = ""
    otherwise: Any = NOTHING
    required: tuple[str, ...] = ()
    single: Mapping[str, str] = field(default_factory=dict)

    def rule(self, name: str, message: Message | None = None) -> Rule:
        """Return the rule of a field in a message; without a message, the usual rule."""
        rule = self.fields[name]
        if isinstance(rule, Depends):
            return rule.usual if message is None else rule.choose(message)
        return rule


def at(key: str, note: str = "") -> Mapped:
    return Mapped(key=key, note=note)


def each(rule: Rule, *names: str) -> dict[str, Rule | Depends]:
    """Use one rule for several fields."""
    return dict.fromkeys(names, rule)


def unless(harmless: Any, reason: str) -> Refused:
    return Refused(reason=reason, harmless=harmless)


def add_implied_rules(written: Mapping[str, Structure]) -> dict[str, Structure]:
    """Return the structures of all supported messages, with a rule for each field.

    A message makes the dataclass of the tree with its name. It needs an entry in `written` only if it has another name,
    or if some of its fields need a rule; `Structure.fields` says which rules are implied.
    """
    classes = {cls.__name__.lower(): cls for cls in nested_dataclasses(TrainEvalConfig)}
    structures = dict(written)
    for name in message_types():
        made = classes.get(name.rpartition(".")[2].lower())
        if made is not None:
            structures[name] = dataclasses.replace(written.get(name, Structure()), makes=made)
    return {name: _with_implied_rules(name, structure, structures) for name, structure in structures.items()}


def _with_implied_rules(message: str, structure: Structure, structures: Mapping[str, Structure]) -> Structure:
    made = structure.makes
    names = {item.name for item in dataclasses.fields(made)} if made else set()
    implied: dict[str, Rule | Depends] = {}
    for item in message_types()[message].fields.values():
        if item.name in names:
            implied[item.name] = at(item.name)
        elif made is None and item.oneof and item.type in structures:
            implied[item.name] = at("")
    return dataclasses.replace(structure, fields={**implied, **structure.fields})


# --- dataclasses of the configuration tree ----------------------------------------------------------------------------


def item_type(annotation: Any) -> Any:
    """Return the item type of a tuple, or the annotation itself."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else annotation


@functools.cache
def tagged_classes() -> frozenset[type]:
    """Return the dataclasses whose plain form has a "type" key, because they are members of unions."""
    annotations = (each for cls in nested_dataclasses(TrainEvalConfig) for each in type_hints(cls).values())
    unions = (dataclass_members(item_type(annotation)) for annotation in annotations)
    tagged = (member for members in unions if len(members) > 1 for member in members)
    return frozenset(member for member in tagged if not is_untagged(member))


def allowed_texts(cls: type, name: str) -> tuple[str, ...]:
    """Return the values allowed by a Literal field of a dataclass; empty for other fields."""
    annotation = item_type(type_hints(cls).get(name))
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def fields_without_default(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING)


def plain_default(cls: type, name: str) -> Any:
    """Return the default of a field as plain data, or NOTHING."""
    default = next(field.default for field in dataclasses.fields(cls) if field.name == name)
    if default is dataclasses.MISSING:
        return NOTHING
    return list(default) if isinstance(default, tuple) else to_dict(default)


# --- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldNote:
    """One field of a file.

    Attributes:
        path: path in the file, such as "train_config.data_augmentation_options[1].random_crop_image.min_area".
        where: "file:line".
        value: the value as written, shortened and without possible secrets; "{}" for an empty message, "{...}" for a
            message whose fields are listed after it, "(missing)" for a missing field.
        reason: the keys in the tree, or the reason why the field is ignored or refused.
    """

    path: str
    where: str
    value: str
    reason: str


@dataclass(frozen=True)
class PipelineConfigReport:
    """The plain tree of `TrainEvalConfig` for a file, and each field of the file in one of three lists.

    The tree contains the written values, and the Object Detection API's defaults where they differ from the tree's own.
    With refused fields, it is incomplete.
    """

    name: str
    located: Located
    mapped: tuple[FieldNote, ...]
    ignored: tuple[FieldNote, ...]
    refused: tuple[FieldNote, ...]
