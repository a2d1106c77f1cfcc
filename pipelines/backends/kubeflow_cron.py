"""Times as the scheduled workflow controller of Kubeflow Pipelines reads them.

It reads six fields, seconds first, with robfig/cron v1.2.0 (kubeflow/pipelines,
backend/src/crd/controller/scheduledworkflow/util/cron_schedule.go and go.mod). That version has no CRON_TZ= or TZ=: all
words count as fields, and more than six are refused (robfig/cron, v1.2.0, parser.go, Parse). The time zone is the
controller's, from its environment variable CRON_SCHEDULE_TIMEZONE (util/const.go, GetLocation).
"""

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from detloom.schemas.cron import parse_cron
from detloom.schemas.errors import InputError
from detloom.schemas.schedule_config import Schedule


def cluster_cron(cron: str) -> str:
    """Five fields as six; Sunday, which may be 7 for cron, is 0 (robfig/cron, v1.2.0, spec.go, dow)."""
    *others, weekdays = cron.split(" ")
    if "7" in weekdays:
        weekdays = ",".join(map(str, sorted(parse_cron(cron).weekdays)))
    return " ".join(("0", *others, weekdays))


def cluster_start(schedule: Schedule) -> datetime | None:
    """The moment after which the first time is looked for, so that `schedule.start` itself may be the first.

    The controller begins with the first time later than its start (cron_schedule.go, getNextScheduledTimeImp). It would
    also make up for times since a start that is over: then there is none, and the schedule begins now.
    """
    start = schedule.start_time
    return None if start is None or start <= datetime.now(timezone.utc) else start - timedelta(seconds=1)


def next_cluster_time(cron: str, zone: str, start: datetime | None, end: datetime | None) -> datetime | None:
    """When a schedule starts its next run, which the API does not tell; None if it is over, or not understood."""
    seconds, _, fields = cron.replace("?", "*").partition(" ")
    try:
        times = parse_cron(fields)
    except InputError:
        return None
    if seconds != "0":
        return None
    after = max(datetime.now(timezone.utc), start or datetime.min.replace(tzinfo=timezone.utc))
    following = times.next_after(after.astimezone(ZoneInfo(zone)))
    if following is None or (end is not None and following > end):
        return None
    return following.astimezone(timezone.utc)
