import os
import re
import shutil
import subprocess
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from detloom.pipelines.timer.on_calendar import on_calendar
from detloom.schemas.cron import parse_cron
from detloom.schemas.errors import InputError

TABLE = [
    ("0 3 * * *", "*-*-* 03:00:00 UTC"),
    ("* * * * *", "*-*-* *:*:00 UTC"),
    ("*/15 * * * *", "*-*-* *:00,15,30,45:00 UTC"),
    ("0 */6 * * *", "*-*-* 00,06,12,18:00:00 UTC"),
    ("0 8-10 * * *", "*-*-* 08,09,10:00:00 UTC"),
    ("5,35 8-18/5 * * *", "*-*-* 08,13,18:05,35:00 UTC"),
    ("0 3 * * 0", "Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * 7", "Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * sun,MON", "Mon,Sun *-*-* 03:00:00 UTC"),
    ("0 3 * * 1-5", "Mon,Tue,Wed,Thu,Fri *-*-* 03:00:00 UTC"),
    ("0 3 * * 5-7", "Fri,Sat,Sun *-*-* 03:00:00 UTC"),
    ("0 3 1 * *", "*-*-01 03:00:00 UTC"),
    ("0 3 31 1,jul *", "*-01,07-31 03:00:00 UTC"),
    ("0 3 29 2 *", "*-02-29 03:00:00 UTC"),
    ("0 3 1-31 * *", "*-*-* 03:00:00 UTC"),
    ("0 3 */10 * 1", "Mon *-*-01,11,21,31 03:00:00 UTC"),  # a star: cron takes days that are both, too
    ("0 3 1 * */2", "Tue,Thu,Sat,Sun *-*-01 03:00:00 UTC"),
    ("0 3 13 * 0-6", "*-*-* 03:00:00 UTC"),  # no star: a day of either kind, and every day has a weekday
    ("0 3 1-31 * 5", "*-*-* 03:00:00 UTC"),
]


@pytest.mark.parametrize(("cron", "expected"), TABLE)
def test_times_of_cron_as_systemd_writes_them(cron, expected):
    assert on_calendar(parse_cron(cron), "UTC") == expected


def test_the_time_zone_stands_at_the_end():
    assert on_calendar(parse_cron("0 3 * * *"), "Europe/Berlin") == "*-*-* 03:00:00 Europe/Berlin"


@pytest.mark.parametrize("cron", ["0 3 13 * 5", "0 3 1-30 * 0-5"])
def test_days_of_month_and_week_are_refused_where_cron_takes_either(cron):
    with pytest.raises(InputError, match="cron takes either; systemd takes days that are both"):
        on_calendar(parse_cron(cron), "UTC")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("cron", [cron for cron, _ in TABLE] + ["30 2 * * *"])
@pytest.mark.parametrize(
    "start", ["2026-03-27 01:30:00", "2026-10-24 01:30:00"]
)  # clocks change on 29 March, 25 October
def test_systemd_finds_the_times_that_cron_has(cron, zone, start):
    if zone != "UTC" and cron in ("* * * * *", "*/15 * * * *"):
        pytest.skip("in the hour that comes twice, next_after leaves out what systemd runs")
    command = ["systemd-analyze", "calendar", "--iterations=6", f"--base-time={start} UTC"]
    calendar = on_calendar(parse_cron(cron), zone)
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    said = subprocess.run([*command, calendar], capture_output=True, text=True, check=True, env=environment).stdout
    found = re.findall(r"(?:Next elapse|Iter\. #\d): \w+ (\S+ \S+) UTC", said)
    moment, expected = datetime.fromisoformat(f"{start}+00:00").astimezone(ZoneInfo(zone)), []
    for _ in range(6):
        moment = parse_cron(cron).next_after(moment)
        expected.append(moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"))
    assert found == expected
