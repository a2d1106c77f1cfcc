"""Times as cron writes them: five fields, read the same way by cron, Kubeflow Pipelines and Vertex AI.

What these read differently is refused: a step without a range (5/15), ranges over the end (22-4), and times that never
come (31 February). Kubeflow's rules are those of robfig/cron v1.2.0 (robfig/cron, parser.go and spec.go), which
kubeflow/pipelines, go.mod names.
"""

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_LONGEST_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SEARCHED_DAYS = 9 * 366  # 29 February may be eight years away
_SUNDAY = 7  # also 0
_MAX_LENGTH = 500  # characters; all minutes, one by one, are 169


@dataclass(frozen=True, kw_only=True)
class Cron:
    """The times of a cron expression.

    Attributes:
        days: of the month.
        weekdays: 0 is Sunday.
        any_day, any_weekday: whether the field began with a star. If neither did, a day of either kind counts.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def is_on(self, day: date) -> bool:
        """Whether there are times on that day."""
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        wanted = (is_day and is_weekday) if self.any_day or self.any_weekday else (is_day or is_weekday)
        return day.month in self.months and wanted

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time later than `moment`, in its time zone; a time that a change of clocks leaves out is none.

        Args:
            moment: with a time zone.
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
    """Read "minute hour day-of-month month day-of-week".

    Raises:
        InputError: saying which field is wrong, and what is allowed there.
    """
    fields = text.split(" ")
    if len(fields) != 5 or len(text) > _MAX_LENGTH:
        allowed = "five fields with a space between them: minute, hour, day of month, month, day of week"
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

    def number(word: str) -> int:
        value = (names or {}).get(word.lower(), int(word) if word.isascii() and word.isdigit() else -1)
        if not first <= value <= last:
            raise wrong
        return value

    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        low, dash, high = span.partition("-")
        if slash and not (step.isascii() and step.isdigit() and int(step) > 0 and (span == "*" or dash)):
            raise wrong
        start, end = (first, last) if span == "*" else (number(low), number(high if dash else low))
        if start > end:
            raise wrong
        found.update(range(start, end + 1, int(step) if slash else 1))
    return frozenset(found)
