"""The ranges of fields."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from detloom.schemas.errors import FieldError, Positive, Ranged, Share


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
