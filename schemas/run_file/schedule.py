"""Schedule of automatic runs, and conditions for training again.

A cron expression has five fields that cron, Kubeflow Pipelines and Vertex AI interpret in the same way. Expressions
that they interpret differently are rejected: a step without a range (5/15), ranges across the end (22-4), and dates
that never occur (31 February). Kubeflow follows robfig/cron v1.2.0 (parser.go and spec.go), the version in go.mod of
kubeflow/pipelines.
"""

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Annotated
from zoneinfo import ZoneInfo

from detloom.schemas.errors import FieldError, InputError, NotNegativeInt, Ranged, check, check_fields
from detloom.schemas.reading.redact import redact

# --- cron expressions -------------------------------------------------------------------------------------------------


_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_LONGEST_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SEARCHED_DAYS = 9 * 366  # the next 29 February can be eight years away
_SUNDAY = 7  # also 0
_MAX_LENGTH = 500  # characters; a list of all minutes has 169


@dataclass(frozen=True, kw_only=True)
class Cron:
    """The times of a cron expression.

    Attributes:
        days: days of the month.
        weekdays: days of the week; 0 is Sunday.
        any_day, any_weekday: True if the field starts with a star. If neither does, a day that matches one of the two
            fields is enough.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def is_on(self, day: date) -> bool:
        """Return True if the expression has times on this day."""
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        wanted = (is_day and is_weekday) if self.any_day or self.any_weekday else (is_day or is_weekday)
        return day.month in self.months and wanted

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment`, in its time zone; skip times that a clock change omits.

        Args:
            moment: a time with a time zone.
        """
        day = moment.date()
        for _ in range(_SEARCHED_DAYS):
            if self.is_on(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        at = datetime.combine(day, time(hour, minute), moment.tzinfo)
                        in_utc = at.astimezone(timezone.utc)
                        is_left_out = in_utc.astimezone(at.tzinfo).time() != at.time()
                        if not is_left_out and in_utc > moment.astimezone(timezone.utc):
                            return at
            day += timedelta(days=1)
        return None


def parse_cron(text: str) -> Cron:
    """Parse "minute hour day-of-month month day-of-week".

    Raises:
        InputError: with the name of the invalid field and its allowed values.
    """
    fields = text.split(" ")
    if len(fields) != 5 or len(text) > _MAX_LENGTH:
        allowed = "five fields separated by one space: minute, hour, day of month, month, day of week"
        raise InputError(f"got {redact(repr(text))}, allowed: {allowed}.")
    minutes = _parse_field("minute", fields[0], 0, 59)
    hours = _parse_field("hour", fields[1], 0, 23)
    days = _parse_field("day of month", fields[2], 1, 31)
    months = _parse_field("month", fields[3], 1, 12, _MONTHS)
    weekdays = _parse_field("day of week", fields[4], 0, _SUNDAY, _WEEKDAYS)
    any_day, any_weekday = fields[2].startswith("*"), fields[4].startswith("*")
    if any_weekday and all(min(days) > _LONGEST_MONTH_DAYS[month - 1] for month in months):
        raise InputError(f"day of month: got {redact(fields[2])}, which the months {redact(fields[3])} do not have.")
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % _SUNDAY for day in weekdays),
        any_day=any_day,
        any_weekday=any_weekday,
    )


def _parse_field(name: str, text: str, first: int, last: int, names: Mapping[str, int] | None = None) -> frozenset[int]:
    allowed = f"*, numbers from {first} to {last}" + (f" or {', '.join(names)}" if names else "")
    wrong = InputError(f"{name}: got {redact(repr(text))}, allowed: {allowed}, ranges (1-5), steps (*/2), lists (1,3).")

    def is_number(word: str) -> bool:
        return word.isascii() and word.isdigit()

    def number(word: str) -> int:
        value = int(word) if is_number(word) else -1
        if names is not None:
            value = names.get(word.lower(), value)
        if not first <= value <= last:
            raise wrong
        return value

    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        low, dash, high = span.partition("-")
        is_range = span == "*" or bool(dash)
        is_step = is_number(step) and int(step) > 0
        if slash and not (is_step and is_range):
            raise wrong
        if span == "*":
            start, end = first, last
        else:
            start, end = number(low), number(high if dash else low)
        if start > end:
            raise wrong
        found.update(range(start, end + 1, int(step) if slash else 1))
    return frozenset(found)


# --- schedule ---------------------------------------------------------------------------------------------------------


def check_timezone(field: str, name: str) -> None:
    """Raise FieldError unless the text is the name of a time zone in the IANA database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        got = redact(repr(name))
        raise FieldError(field, f"got {got}, allowed: a name such as UTC or Europe/Berlin.") from None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of automatic runs."""

    cron: str
    """Cron expression: minute, hour, day of month, month, day of week. "0 3 * * *" is every night at 03:00."""
    timezone: str = "UTC"
    """Time zone of `cron`, such as Europe/Berlin. On Kubeflow, all schedules of a cluster use
    `kubeflow.schedule_timezone`."""
    max_concurrency: int = 1
    """Largest number of simultaneous runs: 1 on one machine, at most 10 on Kubeflow. On Kubeflow, an additional run
    waits. Vertex AI counts only runs that are starting; an additional run waits with `catch_up` and is skipped
    without."""
    catch_up: bool = False
    """Make up for times missed while the schedule was paused or the machine was off: on Kubeflow and Vertex AI one run
    per missed time, on one machine a single run. Without it, Kubeflow still makes up for the last missed time."""
    caching: bool = True
    """Use cached results of nodes whose inputs, settings and code have not changed."""
    start: str = ""
    """Start time, such as 2026-01-31T03:00, in `timezone` unless it has an offset such as +01:00; empty starts now."""
    end: str = ""
    """End time in the same format; empty for no end."""

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
        """Return the time in UTC, or None."""
        return self._moment("start")

    @property
    def end_time(self) -> datetime | None:
        """Return the time in UTC, or None."""
        return self._moment("end")

    def _moment(self, field: str) -> datetime | None:
        text = getattr(self, field)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.timezone))
            return aware.astimezone(timezone.utc)
        except (ValueError, OverflowError):  # OverflowError: an offset at the end of the calendar
            raise FieldError(field, f"got {redact(repr(text))}, allowed: a time such as 2026-01-31T03:00.") from None


# --- conditions for training again ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Retrain(Ranged):
    """Conditions for training again. One of them is enough; the first training run needs none."""

    new_span: bool = False
    """Train if there is a span that the last finished training run did not use."""
    min_new_images: NotNegativeInt = 0
    """Train if there are at least this many more training images than in the last finished training run; 0 ignores
    their number."""
    drift: bool = False
    """Train if the training data differ from those of the last finished training run by more than the thresholds of
    `checks.class_drift` or `checks.size_drift`."""
    max_age_days: Annotated[float, "0 to 36500"] = 0.0
    """Train if the last finished training run is at least this many days old; 0 ignores its age."""
    records: str = ""
    """Folder, or its address, for the records of finished training runs; empty for `push_to`. Required with
    `push.vertex`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_reason = self.new_span or self.min_new_images > 0 or self.drift or self.max_age_days > 0
        if not has_reason:
            raise FieldError("new_span", "set at least one of new_span, min_new_images, drift and max_age_days.")
