"""When a pipeline runs without anyone watching."""

import re
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from detloom.schemas.checks import check, check_fields

_NUMBER = r"(\*|[0-9]+(-[0-9]+)?)(/[0-9]+)?"
_NAME = r"(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?"  # months and days of the week have names, too
_CRON = re.compile(" ".join(f"{each}(,{each})*" for each in (_NUMBER, _NUMBER, _NUMBER, _NAME, _NAME)))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a pipeline runs by itself."""

    cron: str
    """Minute, hour, day of month, month, day of week, as cron writes them: "0 3 * * *" is every night at three."""
    timezone: str = "UTC"
    """Of the times in `cron`, such as Europe/Berlin."""
    max_concurrency: int = 1
    """Runs at the same time; a run that would be one too many waits or is left out, as the backend does it."""
    catch_up: bool = False
    """Run what was missed while the schedule was paused or the machine off: once for each missed time on Kubeflow, once
    in all on one machine. Vertex AI never does."""
    caching: bool = True
    """Answer nodes from the cache whose inputs, settings and code are unchanged."""
    start: str = ""
    """First moment, such as 2026-01-31T03:00; empty for now."""
    end: str = ""
    """Last moment; empty for none."""

    def __post_init__(self) -> None:
        allowed = "five fields: minute, hour, day of month, month, day of week"
        check(bool(_CRON.fullmatch(self.cron)), "cron", repr(self.cron), allowed)
        check_fields(self, "1 or more", "max_concurrency")
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            check(False, "timezone", repr(self.timezone), "a name such as UTC or Europe/Berlin")
        moments = {}
        for field in ("start", "end"):
            text = getattr(self, field)
            try:
                moments[field] = datetime.fromisoformat(text).replace(tzinfo=None) if text else None
            except ValueError:
                check(False, field, repr(text), "a moment such as 2026-01-31T03:00")
        start, end = moments["start"], moments["end"]
        check(not (start and end) or start < end, "end", repr(self.end), f"later than start ({self.start})", "start")
