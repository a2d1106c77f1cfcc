"""Evaluate conditions on tasks: the part of the Common Expression Language that TFX's compiler uses.

Both backends evaluate a condition over the task's `ExecutorInput` with the proto's field names (kubeflow/pipelines,
backend/src/v2/expression/expression.go; api/v2alpha1/pipeline_spec.proto, `TriggerPolicy`). TFX writes comparisons of
artifact metadata with doubles and strings, joined by !, && and || (tfx/orchestration/kubeflow/v2/compiler_utils.py,
`placeholder_to_cel`). All other expressions are refused, including integers, because metadata are doubles.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from conformance_driver.errors import TaskRefused

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+)|(?P<text>'[^'\\]*')|(?P<name>[A-Za-z_]\w*)|(?P<index>\d+)|(?P<sign>[!=<>]=|&&|\|\||[!<>().\[\]]))"
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_ROOTS = ("inputs", "outputs")


def evaluate(condition: str, executor_input: Mapping[str, Any]) -> bool:
    """Return whether the task runs.

    Args:
        executor_input: JSON form with the proto's field names.

    Raises:
        TaskRefused: if the condition cannot be parsed, a key is missing, or values of different types are compared.
    """
    reader = _Reader(condition, executor_input)
    value = reader.either()
    reader.expect_end()
    if not isinstance(value, bool):
        raise TaskRefused(f"condition {condition!r}: return type is not bool, got {value!r}")
    return value


class _Reader:
    """A recursive descent parser with one method per precedence level, which evaluates while parsing."""

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self._text, self._variables = text, variables
        self._tokens = _tokens(text)

    def either(self) -> Any:
        value = self._both()
        while self._take("||"):
            other = self._both()
            value = self._bool(value) or self._bool(other)
        return value

    def expect_end(self) -> None:
        if self._tokens:
            self._refuse(f"{self._tokens[0][1]!r} is unexpected")

    def _both(self) -> Any:
        value = self._negated()
        while self._take("&&"):
            other = self._negated()
            value = self._bool(value) and self._bool(other)
        return value

    def _negated(self) -> Any:
        if self._take("!"):
            return not self._bool(self._negated())
        return self._comparison()

    def _comparison(self) -> Any:
        left = self._value()
        for sign, compare in _COMPARISONS.items():
            if self._take(sign):
                right = self._value()
                if type(left) is not type(right):
                    self._refuse(f"no such overload: {left!r} {sign} {right!r}")
                return compare(left, right)
        return left

    def _value(self) -> Any:
        if self._take("("):
            value = self.either()
            self._need(")")
            return value
        kind, token = self._next()
        match kind:
            case "number":
                return float(token)
            case "text":
                return token[1:-1]
            case "name" if token in _ROOTS:
                return self._path(self._variables.get(token, {}), token)
        return self._refuse(f"{token!r} is not supported")

    def _path(self, value: Any, path: str) -> Any:
        while True:
            if self._take("."):
                key: Any = self._next("name")[1]
            elif self._take("["):
                kind, token = self._next()
                if kind not in ("text", "index"):
                    self._refuse(f"{token!r} is not a key")
                key = token[1:-1] if kind == "text" else int(token)
                self._need("]")
            else:
                return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                self._refuse(f"no such key: {key!r} in {path}")
            path = f"{path}[{key!r}]"

    def _bool(self, value: Any) -> bool:
        if not isinstance(value, bool):
            self._refuse(f"{value!r} is not a bool")
        return bool(value)

    def _take(self, sign: str) -> bool:
        if self._tokens and self._tokens[0] == ("sign", sign):
            self._tokens.pop(0)
            return True
        return False

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            self._refuse(f"{sign!r} is missing")

    def _next(self, kind: str = "") -> tuple[str, str]:
        if not self._tokens or (kind and self._tokens[0][0] != kind):
            self._refuse("unexpected end" if not self._tokens else f"{self._tokens[0][1]!r} is unexpected")
        return self._tokens.pop(0)

    def _refuse(self, why: str) -> Any:
        raise TaskRefused(f"condition {self._text!r}: {why}")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, start = [], 0
    while text[start:].strip():
        match = _TOKEN.match(text, start)
        if match is None:
            raise TaskRefused(f"condition {text!r}: cannot be read at {text[start:]!r}")
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        start = match.end()
    return found
