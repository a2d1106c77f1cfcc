"""Options of a command for the fields of a settings class."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from detloom.schemas.errors import FieldError
from detloom.schemas.reading.field_docs import Setting

T = TypeVar("T")


def setting_options(settings: Mapping[str, Setting]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds an option for each setting, named and documented by its field."""

    def add_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(list(settings.values())):
            help_text = re.sub(
                r"`(\w+)`", lambda match: _option_name(match[1]) if match[1] in settings else match[0], setting.doc
            )
            command = click.option(_option_name(setting.name), help=help_text, **_option_type(setting))(command)
        return command

    return add_options


def build_settings(cls: type[T], options: Mapping[str, Any]) -> T:
    """Build a settings class from the values of its options.

    Raises:
        click.BadParameter: the class rejects a value.
    """
    try:
        return cls(**options)
    except FieldError as error:
        raise click.BadParameter(error.message, param_hint=_option_name(error.field)) from None


def _option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _option_type(setting: Setting) -> dict[str, Any]:
    """Return the arguments of `click.option` for the type of a setting."""
    origin, arguments = get_origin(setting.annotation), get_args(setting.annotation)
    if origin is Literal:
        return {"type": click.Choice(arguments), "default": setting.default, "show_default": True}
    if origin is dict:
        value_type = arguments[1]
        metavar = "NAME=SHARE,..." if value_type is float else "NAME=SOURCE,..."
        return {"type": _Pairs(value_type), "default": "", "metavar": metavar}
    if origin is tuple and get_origin(arguments[0]) is Literal:
        return {"type": click.Choice(get_args(arguments[0])), "multiple": True}
    if origin is tuple:
        return {"default": "", "metavar": "A,B", "callback": lambda ctx, param, value: tuple(_split_list(value))}
    if setting.annotation is bool:
        return {"is_flag": True}
    return {"type": setting.annotation, "default": setting.default, "show_default": setting.default != ""}


class _Pairs(click.ParamType):
    """NAME=VALUE,... as a dictionary."""

    name = "pairs"

    def __init__(self, value_type: type) -> None:
        self._value_type = value_type

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        pairs: dict[str, Any] = {}
        for text in _split_list(value) if isinstance(value, str) else ():
            name, equals, right = text.partition("=")
            if not (name and equals) or name in pairs:
                self.fail(f"got {text!r}, allowed: NAME=VALUE, each name once", param, ctx)
            try:
                pairs[name] = self._value_type(right)
            except ValueError:
                self.fail(f"{name}: got {right!r}, allowed: a number", param, ctx)
        return pairs


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
