from datetime import datetime, timezone

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.schedule_config import Schedule
from detloom.schemas.typed_dict import from_dict, from_json, to_canonical_json


def test_moments_are_in_the_time_zone_of_the_schedule_unless_they_say_otherwise():
    schedule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin", start="2026-07-01T03:00", end="2026-12-31T03:00Z")
    assert schedule.start_time == datetime(2026, 7, 1, 1, 0, tzinfo=timezone.utc)  # summer time: two hours ahead
    assert schedule.end_time == datetime(2026, 12, 31, 3, 0, tzinfo=timezone.utc)
    offset = Schedule(cron="0 3 * * *", start="2026-07-01T03:00-05:00")
    assert offset.start_time == datetime(2026, 7, 1, 8, 0, tzinfo=timezone.utc)


def test_no_moment_is_none():
    schedule = Schedule(cron="0 3 * * *")
    assert (schedule.start_time, schedule.end_time) == (None, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cron": "every day"}, "cron: got 'every day', allowed: five fields"),
        ({"cron": "61 * * * *"}, r"cron: minute: got '61', allowed: \*, numbers from 0 to 59"),
        ({"timezone": "Mars/Olympus"}, "timezone: got 'Mars/Olympus', allowed: a name such as UTC"),
        ({"timezone": ""}, "timezone: got '', allowed"),
        ({"timezone": "../../etc/passwd"}, "timezone: got .*, allowed"),
        ({"timezone": "Europe"}, "timezone: got 'Europe', allowed"),
        ({"max_concurrency": 0}, "max_concurrency: got 0, allowed: 1 or more"),
        ({"start": "tomorrow"}, "start: got 'tomorrow', allowed: a moment such as 2026-01-31T03:00"),
        ({"end": "2026-02-30"}, "end: got '2026-02-30', allowed: a moment"),
        ({"end": "9999-12-31T23:59-12:00"}, "end: got .*, allowed: a moment"),
        # 03:00 in Berlin is 02:00 UTC, before 02:30 UTC
        (
            {"timezone": "Europe/Berlin", "start": "2026-01-31T02:30Z", "end": "2026-01-31T03:00"},
            r"end: got '2026-01-31T03:00', allowed: later than start \(2026-01-31T02:30Z\)",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Schedule(**{"cron": "0 3 * * *", **settings})


def test_a_mistake_is_named_with_its_line():
    with pytest.raises(InputError, match=r"F:3: schedule\.cron: hour: got '24'"):
        from_dict(Schedule, {"cron": "0 24 * * *"}, locate=lambda path: "F:3", path=("schedule",))


def test_a_schedule_travels_as_json():
    schedule = Schedule(cron="0 3 * * 1", timezone="Asia/Tokyo", catch_up=True, start="2026-01-01", caching=False)
    assert from_json(Schedule, to_canonical_json(schedule)) == schedule
