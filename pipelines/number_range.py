"""A range of numbers as an option's type."""

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """`click.FloatRange` that refuses "nan", which lies in every range because no comparison says otherwise."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number
