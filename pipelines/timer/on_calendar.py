"""Times of cron as systemd writes them (`OnCalendar=`, man 7 systemd.time)."""

from collections.abc import Collection

from detloom.schemas.cron import Cron
from detloom.schemas.errors import InputError

_NAMES = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_FROM_MONDAY = (1, 2, 3, 4, 5, 6, 0)


def on_calendar(cron: Cron, timezone: str) -> str:
    """The same times, such as "Mon,Fri *-*-* 03:00:00 Europe/Berlin".

    A time that a change of clocks leaves out is none for systemd too, and one that comes twice counts once (tried with
    systemd 252).

    Raises:
        InputError: a day of the month or a day of the week, where cron takes either and systemd both.
    """
    has_days, has_weekdays = len(cron.days) < 31, len(cron.weekdays) < 7
    if not (cron.any_day or cron.any_weekday):
        if has_days and has_weekdays:
            raise InputError(
                "schedule.cron: names days of the month and days of the week, of which cron takes either; systemd "
                "takes days that are both. Name one of the two, or use --kind cron."
            )
        has_days = has_weekdays = False  # one of them is every day, and either counts
    weekdays = [_NAMES[day] for day in _FROM_MONDAY if day in cron.weekdays] if has_weekdays else []
    day = _numbers(cron.days, 31) if has_days else "*"
    date = f"*-{_numbers(cron.months, 12)}-{day}"
    time = f"{_numbers(cron.hours, 24)}:{_numbers(cron.minutes, 60)}:00"
    return " ".join([*([",".join(weekdays)] if weekdays else []), date, time, timezone])


def _numbers(values: Collection[int], how_many: int) -> str:
    return "*" if len(values) == how_many else ",".join(f"{value:02d}" for value in sorted(values))
