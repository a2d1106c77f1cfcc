from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.run_file.schedule import Retrain, Schedule, parse_cron

BERLIN = ZoneInfo("Europe/Berlin")


def next_times(cron: str, after: str, count: int = 1, zone: ZoneInfo | timezone = timezone.utc) -> list[str]:
    moment, found = datetime.fromisoformat(after).replace(tzinfo=zone), []
    for _ in range(count):
        following = parse_cron(cron).next_after(moment)
        assert following is not None
        found.append(following.isoformat(" ", "minutes")[:16])
        moment = following
    return found


def test_fields_are_sets_of_numbers():
    cron = parse_cron("*/20 1-3 1,15 JAN,dec mon-FRI")
    assert cron.minutes == {0, 20, 40}
    assert cron.hours == {1, 2, 3}
    assert cron.days == {1, 15}
    assert cron.months == {1, 12}
    assert cron.weekdays == {1, 2, 3, 4, 5}


def test_sunday_is_0_and_7():
    assert parse_cron("0 0 * * 7").weekdays == parse_cron("0 0 * * sun").weekdays == {0}
    assert parse_cron("0 0 * * 5-7").weekdays == {5, 6, 0}


def test_next_time_is_later_than_the_given_time():
    assert next_times("0 3 * * *", "2026-01-31T03:00", 2) == ["2026-02-01 03:00", "2026-02-02 03:00"]
    assert next_times("0 3 * * *", "2026-01-31T02:59:59") == ["2026-01-31 03:00"]


def test_either_day_field_matches_if_both_are_restricted():
    # 13 November 2026 is a Friday; the next days are Friday 20, Friday 27, Friday 4 and Friday 11, then Sunday 13.
    days = next_times("0 0 13 * 5", "2026-11-13T12:00", 5)
    assert days == [
        "2026-11-20 00:00",
        "2026-11-27 00:00",
        "2026-12-04 00:00",
        "2026-12-11 00:00",
        "2026-12-13 00:00",
    ]


def test_both_day_fields_must_match_if_one_starts_with_a_star():
    # Odd days that are Mondays: 2026-11-09 and 2026-11-23 (the 16th is even).
    assert next_times("0 0 */2 * 1", "2026-11-03T00:00", 2) == ["2026-11-09 00:00", "2026-11-23 00:00"]


def test_29_february_is_found_across_2100():
    assert next_times("0 0 29 2 *", "2096-03-01T00:00") == ["2104-02-29 00:00"]  # 2100 is not a leap year


def test_time_omitted_by_summer_time_is_skipped():
    assert next_times("30 2 * * *", "2026-03-28T12:00", zone=BERLIN) == ["2026-03-30 02:30"]


def test_repeated_time_counts_once():
    # On 25 October 2026 clocks go back from 03:00 to 02:00; 02:30 is 00:30 and 01:30 UTC.
    assert next_times("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == ["2026-10-25 02:30", "2026-10-26 02:30"]
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


def test_30_february_is_allowed_with_a_day_of_the_week():
    assert next_times("0 0 30 2 1", "2026-02-01T00:00") == ["2026-02-02 00:00"]  # a Monday


def test_times_use_the_time_zone_of_the_schedule_by_default():
    schedule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin", start="2026-07-01T03:00", end="2026-12-31T03:00Z")
    assert schedule.start_time == datetime(2026, 7, 1, 1, 0, tzinfo=timezone.utc)  # summer time: two hours ahead
    assert schedule.end_time == datetime(2026, 12, 31, 3, 0, tzinfo=timezone.utc)
    offset = Schedule(cron="0 3 * * *", start="2026-07-01T03:00-05:00")
    assert offset.start_time == datetime(2026, 7, 1, 8, 0, tzinfo=timezone.utc)


def test_start_and_end_are_optional():
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
    with pytest.raises(InputError, match=r"F:3: schedule\.cron: hour: got '24'"):
        from_dict(Schedule, {"cron": "0 24 * * *"}, locate=lambda path: "F:3", path=("schedule",))


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
