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
    return " ".join(("0", *others, _cluster_weekdays(weekdays)))


def _cluster_weekdays(field: str) -> str:
    """The field as it is, or with numbers from 0 to 6 for what the cluster reads otherwise.

    A star decides whether days of the month and of the week both have to fit: for cron at the field's beginning, for
    robfig/cron anywhere in a list (parser.go, getField and getRange). A step such as */7 is no Sunday.
    """
    parts = field.split(",")
    stars = [part for part in parts if part.startswith("*")] if field.startswith("*") else []
    days = [part for part in parts if part not in stars]
    if any("7" in part or "*" in part for part in days):
        days = [str(day) for day in sorted(parse_cron(f"* * * * {','.join(days)}").weekdays)]
    return ",".join(stars + days)


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
