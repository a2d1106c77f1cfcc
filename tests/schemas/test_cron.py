from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from detloom.schemas.cron import parse_cron
from detloom.schemas.errors import InputError

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


def test_the_next_time_is_later_than_the_moment_itself():
    assert next_times("0 3 * * *", "2026-01-31T03:00", 2) == ["2026-02-01 03:00", "2026-02-02 03:00"]
    assert next_times("0 3 * * *", "2026-01-31T02:59:59") == ["2026-01-31 03:00"]


def test_a_day_of_the_month_or_of_the_week_counts_when_both_are_named():
    # 13 November 2026 is a Friday; the next days are Friday 20, Friday 27, Friday 4 and Friday 11, then Sunday 13.
    days = next_times("0 0 13 * 5", "2026-11-13T12:00", 5)
    assert days == [
        "2026-11-20 00:00",
        "2026-11-27 00:00",
        "2026-12-04 00:00",
        "2026-12-11 00:00",
        "2026-12-13 00:00",
    ]


def test_both_count_when_one_of_them_begins_with_a_star():
    # Odd days that are Mondays: 2026-11-09 and 2026-11-23 (the 16th is even).
    assert next_times("0 0 */2 * 1", "2026-11-03T00:00", 2) == ["2026-11-09 00:00", "2026-11-23 00:00"]


def test_29_february_is_found_over_a_year_without_it():
    assert next_times("0 0 29 2 *", "2096-03-01T00:00") == ["2104-02-29 00:00"]  # 2100 is no leap year


def test_a_time_that_summer_time_leaves_out_is_skipped():
    assert next_times("30 2 * * *", "2026-03-28T12:00", zone=BERLIN) == ["2026-03-30 02:30"]


def test_a_time_that_comes_twice_counts_once():
    # 25 October 2026: three o'clock becomes two; 02:30 is at 00:30 and at 01:30 UTC.
    assert next_times("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == ["2026-10-25 02:30", "2026-10-26 02:30"]
    first = parse_cron("30 2 * * *").next_after(datetime(2026, 10, 24, 12, tzinfo=BERLIN))
    assert first is not None
    assert first.utcoffset() == timedelta(hours=2)


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("0 3 * *", r"got '0 3 \* \*', allowed: five fields with a space between them"),
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
        ("0 3 31 4,6 *", "day of month: got 31, which the months 4,6 do not have"),
        ("9" * 6000 + " 3 * * *", "allowed: five fields"),
    ],
)
def test_what_is_no_cron_expression_is_refused_with_its_field(cron, message):
    with pytest.raises(InputError, match=message):
        parse_cron(cron)


def test_30_february_is_no_mistake_beside_a_day_of_the_week():
    assert next_times("0 0 30 2 1", "2026-02-01T00:00") == ["2026-02-02 00:00"]  # a Monday
