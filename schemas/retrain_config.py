"""When there is reason to train again."""

from dataclasses import dataclass

from detloom.schemas.checks import check, check_fields


@dataclass(frozen=True, kw_only=True)
class Retrain:
    """Train only when there is reason to; each field that is set is one, and the first training needs none."""

    new_span: bool = False
    """A span that the last finished training did not see is a reason."""
    min_new_images: int = 0
    """So many more training images than the last finished training read are a reason; 0: they are none."""
    drift: bool = False
    """Training data that, by the limits of `checks.drift`, differ from those of the last finished training are a
    reason."""
    max_age_days: float = 0.0
    """A last finished training as old as that is a reason; 0: its age is none."""
    records: str = ""
    """Folder, or address of one, that remembers finished trainings; empty for `push_to`. Needed with `push.vertex`."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "min_new_images", "max_age_days")
        has_reason = self.new_span or self.min_new_images > 0 or self.drift or self.max_age_days > 0
        check(has_reason, "new_span", "no reason", "at least one of new_span, min_new_images, drift, max_age_days")
