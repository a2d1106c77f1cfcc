"""When a pipeline runs without anyone watching."""

from dataclasses import dataclass
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from detloom.schemas.checks import check, check_fields
from detloom.schemas.cron import parse_cron
from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.redact import redact


def check_timezone(field: str, name: str) -> None:
    """Raise FieldError unless it is the name of a time zone in the IANA data base."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        check(False, field, redact(repr(name)), "a name such as UTC or Europe/Berlin")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a pipeline runs by itself."""

    cron: str
    """Minute, hour, day of month, month, day of week, as cron writes them: "0 3 * * *" is every night at three."""
    timezone: str = "UTC"
    """Of the times in `cron`, such as Europe/Berlin. On Kubeflow all schedules of a cluster have the same one:
    `kubeflow.schedule_timezone`."""
    max_concurrency: int = 1
    """Runs at the same time, on one machine 1, on Kubeflow at most 10. A run that would be one too many waits there; on
    Vertex AI, where only runs that are being started count, it waits with `catch_up` and is left out without."""
    catch_up: bool = False
    """Run what was missed while the schedule was paused or the machine off: on Kubeflow and Vertex AI once for each
    missed time, on one machine once in all. Without it, Kubeflow still makes up for the last missed time."""
    caching: bool = True
    """Answer nodes from the cache whose inputs, settings and code are unchanged."""
    start: str = ""
    """First moment, such as 2026-01-31T03:00, in `timezone` unless it ends with an offset such as +01:00; empty for
    now."""
    end: str = ""
    """Last moment, written alike; empty for none."""

    def __post_init__(self) -> None:
        try:
            parse_cron(self.cron)
        except InputError as error:
            raise FieldError("cron", str(error)) from None
        check_timezone("timezone", self.timezone)
        check_fields(self, "1 or more", "max_concurrency")
        start, end = self.start_time, self.end_time
        check(not (start and end) or start < end, "end", repr(self.end), f"later than start ({self.start})", "start")

    @property
    def start_time(self) -> datetime | None:
        """In UTC."""
        return self._moment("start")

    @property
    def end_time(self) -> datetime | None:
        """In UTC."""
        return self._moment("end")

    def _moment(self, field: str) -> datetime | None:
        text = getattr(self, field)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.timezone))
            return aware.astimezone(timezone.utc)
        except (ValueError, OverflowError):  # OverflowError: an offset at the very end of the calendar
            raise FieldError(field, f"got {redact(repr(text))}, allowed: a moment such as 2026-01-31T03:00.") from None
