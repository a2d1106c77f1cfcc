"""The ranges of fields."""

from dataclasses import dataclass, make_dataclass
from typing import Annotated

import pytest

import detloom.schemas.model.config  # noqa: F401  defines the subclasses
from detloom.schemas.errors import FieldError, Positive, Ranged, Share, _ranges_of


@dataclass(frozen=True, kw_only=True)
class _Base(Ranged):
    share: Share = 0.5
    seconds: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class _Derived(_Base):
    count: Annotated[int, "1 to 8"] = 1


@pytest.mark.parametrize(("field", "value"), [("share", 1.5), ("seconds", 0.0), ("count", 9)])
def test_value_outside_of_the_range_of_its_type_names_its_field(field, value):
    assert _Derived(share=1.0, count=8).seconds is None
    with pytest.raises(FieldError, match=f"^{field}: got {value}, allowed: "):
        _Derived(**{field: value})


def _subclasses(cls):
    return [each for child in cls.__subclasses__() for each in (child, *_subclasses(child))]


def test_no_field_drops_the_range_of_the_field_that_it_overrides():
    pairs = [(cls, base) for cls in _subclasses(Ranged) for base in cls.__mro__[1:] if issubclass(base, Ranged)]
    dropped = [(cls, field) for cls, base in pairs for field in _ranges_of(base).keys() - _ranges_of(cls).keys()]
    assert len(pairs) > 50
    assert dropped == []


@pytest.mark.parametrize("kind", [tuple[Share, ...], tuple[Share, ...] | None, Share | str])
def test_the_range_of_anything_but_a_number_is_refused(kind):
    with pytest.raises(TypeError, match=r"Nested\.shares"):
        _ranges_of(make_dataclass("Nested", [("shares", kind)]))


def test_none_is_refused_where_the_type_does_not_allow_it():
    with pytest.raises(FieldError, match=r"^share: got None"):
        _Derived(share=None)
