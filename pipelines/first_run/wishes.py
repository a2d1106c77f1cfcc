"""Decisions of the user about a first run."""

from dataclasses import dataclass
from typing import Any

from detloom.schemas.presets.recipes import Quality


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Decisions of the user; everything else is chosen.

    Attributes:
        seconds: time limit of the run; the step time is then measured. None plans a schedule without a limit.
        data_format: format of the labels; empty detects it.
    """

    quality: Quality = "balanced"
    seconds: float | None = None
    data_format: str = ""

    @classmethod
    def of_options(cls, budget: float | None, quality: Quality | None, data_format: str | None) -> "Wishes":
        """Return the wishes of a command line; None is an option that was not given."""
        given: dict[str, Any] = {"seconds": budget, "quality": quality, "data_format": data_format}
        return cls(**{name: value for name, value in given.items() if value is not None})
