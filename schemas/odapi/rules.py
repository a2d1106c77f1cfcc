"""What can become of a field of the Object Detection API: it is mapped, ignored or refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.schemas.odapi.text_format import Message

NOTHING: Any = object()  # no value, where None would be one


class UnsupportedError(Exception):
    """Raised by `Mapped.read` for a value that has no counterpart; the text says what is supported."""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """The field has a counterpart in the configuration tree.

    Attributes:
        key: where, below the place of the field's message, with dots between; "" is that place itself.
        read: from the value in the text to the tree's; None takes it as it is. May raise UnsupportedError.
        write: from the plain tree at the message's place to the value in the text, None if there is nothing to write.
            Left out, it is the value at `key`.
        implied: what the field is read as where it is left out, if that is not the tree's default: a value, or for a
            message the values of its fields.
        adds: of a message: what it says at `key` beside its own fields, by being the one that is written.
        note: what a reader of the documentation should know beside the key.
    """

    key: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    implied: Any = NOTHING
    adds: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """The field changes no result here, or none in the Object Detection API's TF2 loop either.

    Attributes:
        constant: what a written file says nevertheless, because the Object Detection API needs it.
    """

    reason: str
    constant: Any = NOTHING


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The field would change the result and is not supported.

    Attributes:
        harmless: a value at which it changes nothing, so that it is ignored.
    """

    reason: str
    harmless: Any = NOTHING


Rule = Mapped | Ignored | Refused


@dataclass(frozen=True, kw_only=True)
class Depends:
    """A rule that depends on what else its message says.

    Attributes:
        usual: the rule that documentation and writer go by.
        when: for the documentation: when another holds.
        choose: from the field's message to the rule.
    """

    usual: Rule
    when: str
    choose: Callable[[Message], Rule]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """One message of the Object Detection API.

    Attributes:
        fields: a rule for each of its fields.
        makes: dataclass that its values make; None if they are another's.
        choice: oneof of which one member must be set.
        otherwise: plain tree where no member is set, if that is allowed.
        required: fields without which the Object Detection API refuses the message, though the tree has a default.
        single: repeated fields of which only the first is read; the reason why.
    """

    fields: Mapping[str, Rule | Depends]
    makes: type | None = None
    choice: str = ""
    otherwise: Any = NOTHING
    required: tuple[str, ...] = ()
    single: Mapping[str, str] = field(default_factory=dict)

    def rule(self, name: str, message: Message | None = None) -> Rule:
        """The rule of a field in a message; without one, the usual rule."""
        rule = self.fields[name]
        if isinstance(rule, Depends):
            return rule.usual if message is None else rule.choose(message)
        return rule


def at(key: str, note: str = "") -> Mapped:
    return Mapped(key=key, note=note)


def same(*names: str) -> dict[str, Rule | Depends]:
    """Fields that are called in the tree as they are in the file."""
    return {name: Mapped(key=name) for name in names}


def each(rule: Rule, *names: str) -> dict[str, Rule | Depends]:
    """One rule for several fields."""
    return dict.fromkeys(names, rule)


def unless(harmless: Any, reason: str) -> Refused:
    return Refused(reason=reason, harmless=harmless)
