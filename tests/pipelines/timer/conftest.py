"""Fixtures: scheduled runs without a run file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from detloom.pipelines.timer.scheduled_run import ScheduledRun
from detloom.schemas.run_file.schedule import Schedule


@pytest.fixture
def make_scheduled() -> Callable[..., ScheduledRun]:
    def make(*words: str, workspace: str = "/runs/cells", **schedule: object) -> ScheduledRun:
        return ScheduledRun(
            name="cells",
            schedule=Schedule(**{"cron": "0 3 * * *", **schedule}),
            words=words or ("/usr/bin/python3", "-m", "detloom.pipelines.cli", "run", "/data/run.yaml"),
            workspace=Path(workspace),
        )

    return make
