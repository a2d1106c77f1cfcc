from datetime import datetime, timezone

import pytest

from detloom.pipelines.backends.kubeflow_cron import cluster_cron, cluster_start, next_cluster_time
from detloom.schemas.cron import parse_cron
from detloom.schemas.schedule_config import Schedule

FAR = datetime(2099, 6, 30, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("cron", "six"),
    [
        ("0 3 * * *", "0 0 3 * * *"),
        ("*/15 1-5 1,15 JAN mon-fri", "0 */15 1-5 1,15 JAN mon-fri"),
        ("0 3 * * 7", "0 0 3 * * 0"),
        ("0 3 * * 5-7", "0 0 3 * * 0,5,6"),
    ],
)
def test_seconds_come_first_and_sunday_is_0(cron, six):
    assert cluster_cron(cron) == six


@pytest.mark.parametrize(
    ("cron", "six"),
    [
        ("0 3 1-7 * */7", "0 0 3 1-7 * */7"),  # Sundays among the first seven days, not these days and all Sundays
        ("0 3 1-7 * */2,7", "0 0 3 1-7 * */2,0"),
        ("0 3 1-7 * */7,5-7", "0 0 3 1-7 * */7,0,5,6"),
        ("0 3 1-7 * 5,*/7", "0 0 3 1-7 * 0,5"),  # for cron no star, as it is not the first: these days, or those
        ("0 3 1-7 * 1,*/2", "0 0 3 1-7 * 0,1,2,4,6"),
    ],
)
def test_a_star_keeps_its_meaning(cron, six):
    assert cluster_cron(cron) == six
    ours, theirs = parse_cron(cron), parse_cron(six.partition(" ")[2])
    assert (ours.weekdays, ours.any_weekday) == (theirs.weekdays, theirs.any_weekday)


def test_the_start_itself_may_be_the_first_time():
    schedule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin", start="2099-07-01T03:00")
    assert cluster_start(schedule) == datetime(2099, 7, 1, 0, 59, 59, tzinfo=timezone.utc)


def test_a_start_that_is_over_is_none_so_that_nothing_is_made_up_for():
    assert cluster_start(Schedule(cron="0 3 * * *", start="2020-01-01")) is None
    assert cluster_start(Schedule(cron="0 3 * * *")) is None


def test_the_next_time_is_in_the_clusters_time_zone():
    assert next_cluster_time("0 0 3 * * *", "Europe/Berlin", FAR, None) == datetime(2099, 7, 1, 1, tzinfo=timezone.utc)
    assert next_cluster_time("0 0 3 ? * *", "UTC", FAR, None) == datetime(2099, 7, 1, 3, tzinfo=timezone.utc)
    following = next_cluster_time("0 * * * * *", "UTC", None, None)
    assert following is not None
    assert 0 <= (following - datetime.now(timezone.utc)).total_seconds() < 61


def test_there_is_no_next_time_after_the_end_and_for_what_others_wrote():
    assert next_cluster_time("0 0 3 * * *", "UTC", FAR, FAR) is None
    assert next_cluster_time("30 0 3 * * *", "UTC", None, None) is None
    assert next_cluster_time("@daily", "UTC", None, None) is None
    assert next_cluster_time("-", "UTC", None, None) is None
