from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.run_file.schedule import Retrain, Schedule, parse_cron

BERLIN = ZoneInfo("Europe/Berlin")


def next_times(cron: str, after: str, count: int, zone: ZoneInfo | timezone) -> list[str]:
    moment, found = datetime.fromisoformat(after).replace(tzinfo=zone), []
    for _ in range(count):
        following = parse_cron(cron).next_after(moment)
        assert following is not None
        found.append(following.isoformat(" ", "minutes")[:16])
        moment = following
    return found


def test_fields_are_sets_of_numbers():
    cron = parse_cron("*/20 1-3 1,15 JAN,dec mon-FRI")
    assert (cron.minutes, cron.hours, cron.days, cron.months) == ({0, 20, 40}, {1, 2, 3}, {1, 15}, {1, 12})
    assert cron.weekdays == {1, 2, 3, 4, 5}
    assert parse_cron("0 0 * * 7").weekdays == parse_cron("0 0 * * sun").weekdays == {0}
    assert parse_cron("0 0 * * 5-7").weekdays == {5, 6, 0}


@pytest.mark.parametrize(
    ("cron", "after", "zone", "following"),
    [
        ("0 3 * * *", "2026-01-31T03:00", timezone.utc, ["2026-02-01 03:00", "2026-02-02 03:00"]),  # later, not equal
        ("0 3 * * *", "2026-01-31T02:59:59", timezone.utc, ["2026-01-31 03:00"]),
        # Either day field matches if both are restricted: Friday 11 December 2026, then Sunday 13.
        ("0 0 13 * 5", "2026-12-04T12:00", timezone.utc, ["2026-12-11 00:00", "2026-12-13 00:00"]),
        # Both must match if one starts with a star: odd days that are Mondays (the 16th is even).
        ("0 0 */2 * 1", "2026-11-03T00:00", timezone.utc, ["2026-11-09 00:00", "2026-11-23 00:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00", timezone.utc, ["2104-02-29 00:00"]),  # 2100 is not a leap year
        ("0 0 30 2 1", "2026-02-01T00:00", timezone.utc, ["2026-02-02 00:00"]),  # 30 February or a Monday
        ("30 2 * * *", "2026-03-28T12:00", BERLIN, ["2026-03-30 02:30"]),  # omitted by summer time
        # On 25 October 2026 clocks go back from 03:00 to 02:00; 02:30 is 00:30 and 01:30 UTC, and counts once.
        ("30 2 * * *", "2026-10-24T12:00", BERLIN, ["2026-10-25 02:30", "2026-10-26 02:30"]),
    ],
)
def test_next_times(cron, after, zone, following):
    assert next_times(cron, after, len(following), zone) == following


def test_of_a_repeated_time_the_first_counts():
    first = parse_cron("30 2 * * *").next_after(datetime(2026, 10, 24, 12, tzinfo=BERLIN))
    assert first is not None
    assert first.utcoffset() == timedelta(hours=2)


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("0 3 * *", r"got '0 3 \* \*', allowed: five fields"),
        ("0  3 * * *", "allowed: five fields"),
        ("0 0 3 * * *", "allowed: five fields"),
        ("@daily", "allowed: five fields"),
        ("60 3 * * *", r"minute: got '60', allowed: \*, numbers from 0 to 59, ranges"),
        ("0 24 * * *", "hour: got '24'"),
        ("0 3 0 * *", "day of month: got '0'"),
        ("0 3 * 13 *", "month: got '13', allowed: .* or jan, feb"),
        ("0 3 * * 8", "day of week: got '8'"),
        ("0 3 * * monday", "day of week: got 'monday'"),
        ("0 3 * mon *", "month: got 'mon'"),
        ("5/15 3 * * *", "minute: got '5/15'"),
        ("*/0 3 * * *", r"minute: got '\*/0'"),
        ("0 22-4 * * *", "hour: got '22-4'"),
        ("0 3 * * fri-mon", "day of week: got 'fri-mon'"),
        ("0 1, * * *", "hour: got '1,'"),
        ("0 1-2-3 * * *", "hour: got '1-2-3'"),
        ("0 -3 * * *", "hour: got '-3'"),
        ("0 ٣ * * *", "hour: got"),
        ("0 ? * * *", r"hour: got '\?'"),
        ("0 3 31 4,6 *", "day of month: got 31, .*months 4,6"),
        ("9" * 6000 + " 3 * * *", "allowed: five fields"),
    ],
)
def test_invalid_cron_expression_is_rejected(cron, message):
    with pytest.raises(InputError, match=message):
        parse_cron(cron)


def test_times_use_the_time_zone_of_the_schedule_by_default():
    schedule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin", start="2026-07-01T03:00", end="2026-12-31T03:00Z")
    assert schedule.start_time == datetime(2026, 7, 1, 1, 0, tzinfo=timezone.utc)  # summer time: two hours ahead
    assert schedule.end_time == datetime(2026, 12, 31, 3, 0, tzinfo=timezone.utc)
    offset = Schedule(cron="0 3 * * *", start="2026-07-01T03:00-05:00")
    assert offset.end_time is None
    assert offset.start_time == datetime(2026, 7, 1, 8, 0, tzinfo=timezone.utc)


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
        ({"start": "tomorrow"}, "start: got 'tomorrow', allowed: .*2026-01-31T03:00"),
        ({"end": "2026-02-30"}, "end: got '2026-02-30', allowed: "),
        ({"end": "9999-12-31T23:59-12:00"}, "end: got .*, allowed: "),
        # 03:00 in Berlin is 02:00 UTC, before 02:30 UTC
        (
            {"timezone": "Europe/Berlin", "start": "2026-01-31T02:30Z", "end": "2026-01-31T03:00"},
            r"end: got '2026-01-31T03:00', allowed: later than start \(2026-01-31T02:30Z\)",
        ),
    ],
)
def test_invalid_schedule_is_rejected(settings, message):
    with pytest.raises(InputError, match=message):
        Schedule(**{"cron": "0 3 * * *", **settings})


def test_invalid_cron_in_a_schedule_is_located():
    with pytest.raises(InputError, match=r"F:3: cron: hour: got '24'"):
        from_dict(Schedule, {"cron": "0 24 * * *"}, locate=lambda path: "F:3")


@pytest.mark.parametrize("reason", [{"new_span": True}, {"min_new_images": 1}, {"drift": True}, {"max_age_days": 0.5}])
def test_one_condition_is_enough(reason):
    assert Retrain(**reason)


def test_retrain_without_a_condition_is_rejected():
    with pytest.raises(FieldError, match="new_span: set at least one of"):
        Retrain(records="/records")


@pytest.mark.parametrize(("field", "allowed"), [("min_new_images", "0 or more"), ("max_age_days", "0 to 36500")])
def test_negative_limit_is_rejected(field, allowed):
    with pytest.raises(FieldError, match=f"{field}: got -1, allowed: {allowed}"):
        Retrain(new_span=True, **{field: -1})
