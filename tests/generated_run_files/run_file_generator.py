"""Generate valid run files from the typed configuration tree.

The settings and their choices come from the dataclasses. A drawn value stays if `config check` accepts the whole file,
so that the ranges are those of the dataclasses, and pairs of settings that exclude each other need no list.
"""

import copy
import dataclasses
import random
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from setting_values import COMMON, EXCLUDED, KEPT, RARE, VALUES

from detloom.pipelines.local.run_local import check_runs_here
from detloom.schemas.errors import InputError
from detloom.schemas.reading.overrides import Located
from detloom.schemas.reading.typed_dict import (
    TYPE_KEY,
    KeyPath,
    dataclass_members,
    from_dict,
    needs_tag,
    to_dict,
    type_hints,
)
from detloom.schemas.run_file.read_run_file import build_run
from detloom.schemas.run_file.run_file import RunFile

Plain = dict[str, Any]

_INTEGERS = (0, 1, 2, 3, 5)
_FLOATS = (0.0, 0.1, 0.5, 0.9, 1.0, 2.0)
_LEARNING_RATES = (0.0, 1e-4, 1e-3, 1e-2)  # larger ones diverge
_ATTEMPTS = 4  # to find a value of a setting that is accepted
_SHARE_OF_NEW_VALUES = 0.3  # of the fields of a new object; the others keep their defaults
_TINY_COUNTS = (0, 1, 2, 3)  # lengths of lists


def _locate(_: KeyPath) -> str:
    return "generated"


class Setting(NamedTuple):
    """A setting in a tree: its name `Class.field`, its annotation and its key path."""

    name: str
    annotation: Any
    path: KeyPath


def walk(cls: type, plain: Mapping[str, Any], path: KeyPath = ()) -> Iterator[Setting]:
    """Yield the settings of a tree that are not excluded, parents first."""
    for field in dataclasses.fields(cls):
        name = f"{cls.__name__}.{field.name}"
        if name in EXCLUDED or field.name not in plain:
            continue
        annotation, value = type_hints(cls)[field.name], plain[field.name]
        yield Setting(name, annotation, (*path, field.name))
        inner = typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else annotation
        items = enumerate(value) if isinstance(value, list) else [("", value)]
        for index, item in items:
            if isinstance(item, dict) and (member := member_of(inner, item)) is not None:
                yield from walk(member, item, (*path, field.name, *([index] if index != "" else [])))


def member_of(annotation: Any, plain: Mapping[str, Any]) -> type | None:
    """Return the dataclass that a mapping belongs to."""
    members = dataclass_members(annotation)
    if len(members) <= 1:
        return members[0] if members else None
    tag = plain.get(TYPE_KEY)
    return next(each for each in members if each.__name__ == tag or (tag is None and not needs_tag(each, annotation)))


def complete(plain: Plain) -> Plain | None:
    """Return a tree with all values; None if `config check` refuses it."""
    try:
        run = build_run(Located(plain, _locate))
        check_runs_here(run)
    except InputError:
        return None
    return dict(to_dict(run))


def is_choice(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    return annotation is bool or origin is typing.Literal or origin in (typing.Union, types.UnionType)


def _item_members(annotation: Any) -> tuple[type, ...]:
    """Return the dataclasses of which a setting is a list; empty for other settings."""
    return dataclass_members(typing.get_args(annotation)[0]) if typing.get_origin(annotation) is tuple else ()


def value_at(plain: Any, path: KeyPath) -> Any:
    for key in path:
        plain = plain[key]
    return plain


def replaced(plain: Plain, changes: Mapping[KeyPath, Any]) -> Plain:
    """Return a copy with other values; it shares the values."""
    changed = copy.deepcopy(plain)
    for path, value in changes.items():
        value_at(changed, path[:-1])[path[-1]] = value
    return changed


class Generator:
    """Draws run files; the same seed, base and checkpoint give the same files.

    Attributes:
        checkpoint: a checkpoint of the base's detector, for `train.fine_tune_checkpoint`; empty for none.
    """

    def __init__(self, seed: int, checkpoint: str = "") -> None:
        self.random = random.Random(seed)
        self.values = {**VALUES, "Train.fine_tune_checkpoint": ("", checkpoint)}

    def generate(self, base: Plain, share_of_numbers: float = 0.2) -> Plain:
        """Return a valid tree: choices and lists of objects are drawn again, and a share of numbers and texts.

        Args:
            base: a valid tree with all values.
        """
        plain = base
        for only_choices in (True, False):
            settings = [setting for setting in walk(RunFile, plain) if setting.name not in KEPT]
            self.random.shuffle(settings)
            for setting in settings:
                is_early = is_choice(setting.annotation) or bool(_item_members(setting.annotation))
                if is_early is not only_choices or dataclasses.is_dataclass(setting.annotation):
                    continue
                if only_choices or self.random.random() < share_of_numbers:
                    plain = self._draw_again(plain, setting)
        return plain

    def _draw_again(self, plain: Plain, setting: Setting) -> Plain:
        """Return the tree with a new value, alone or at all settings of the same field; the old tree if refused."""
        try:
            for _ in range(_ATTEMPTS):
                value = self.draw(setting.annotation, setting.name)
                alike = [each for each in walk(RunFile, plain) if each.path[-1] == setting.path[-1]]
                together = {each.path: value for each in alike if each.annotation == setting.annotation}
                for changes in ({setting.path: value}, together):
                    completed = complete(replaced(plain, changes))
                    if completed is not None:
                        return completed
        except (LookupError, TypeError):
            pass  # an earlier change removed the setting
        return plain

    def draw(self, annotation: Any, name: str) -> Any:
        if name in self.values:
            value = self.random.choice(self.values[name])
            return list(value) if isinstance(value, tuple) else value
        if name.endswith(".severity"):
            return "fail" if self.random.random() < RARE["fail"] else self.random.choice(["off", "warn"])
        if name in RARE and self.random.random() >= RARE[name]:
            return COMMON[name]
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            chosen = self.random.choice(args)
            return None if chosen is type(None) else self._draw_member_or_value(chosen, annotation, name)
        if origin is typing.Literal:
            return self.random.choice(args)
        if origin is tuple:
            return [self.draw(args[0], "") for _ in range(self.random.choice(_TINY_COUNTS))]
        return self._draw_member_or_value(annotation, annotation, name)

    def _draw_member_or_value(self, chosen: Any, annotation: Any, name: str) -> Any:
        if dataclasses.is_dataclass(chosen):
            return self._draw_object(typing.cast(type, chosen), annotation)
        if typing.get_origin(chosen) is typing.Literal:
            return self.random.choice(typing.get_args(chosen))
        if chosen is float and "learning_rate" in name.rpartition(".")[2]:
            return self.random.choice(_LEARNING_RATES)
        drawn = {bool: (False, True), int: _INTEGERS, float: _FLOATS}
        if chosen not in drawn:
            raise LookupError(f"{name}: add values of {chosen} to VALUES, or its name to EXCLUDED.")
        return self.random.choice(drawn[chosen])

    def _draw_object(self, cls: type, annotation: Any) -> Plain:
        """Return a valid mapping of a dataclass: its defaults with some values drawn again, so far as they fit."""
        for _ in range(200):
            plain: Plain = {}
            for field in dataclasses.fields(cls):
                name = f"{cls.__name__}.{field.name}"
                no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                is_drawn = name in self.values or self.random.random() < _SHARE_OF_NEW_VALUES
                if no_default or (name not in EXCLUDED and name not in KEPT and is_drawn):
                    plain[field.name] = self.draw(type_hints(cls)[field.name], name)
            try:
                whole = to_dict(from_dict(cls, plain, locate=_locate))
            except InputError:
                continue
            return {TYPE_KEY: cls.__name__, **whole} if needs_tag(cls, annotation) else whole
        raise LookupError(f"{cls.__name__}: no valid values found.")
