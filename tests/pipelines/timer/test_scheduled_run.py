import sys
from datetime import datetime, timezone

import pytest

from detloom.pipelines.command_line.options import read_override_options
from detloom.pipelines.timer.scheduled_run import build_scheduled_run
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import read_run_file

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def build(tmp_path):
    """Return a function that builds a scheduled run from the text of the section `schedule` and what follows it."""

    def build(schedule, settings=()):
        file = tmp_path / "my run.yaml"
        file.write_text(f"name: cells\ndata: {{path: ., split_by_ratio: {{}}}}\nworkspace: ws\n{schedule}\n")
        run = read_run_file(file, overrides=read_override_options(settings))
        return build_scheduled_run(run, file, settings, NOW)

    return build


def test_command_has_absolute_paths_and_the_workspace(build, tmp_path):
    run = build("schedule: {cron: 0 3 * * *}", ("train.batch_size=8",))
    file, workspace = str(tmp_path / "my run.yaml"), str(tmp_path / "ws")
    program = (sys.executable, "-m", "detloom.pipelines.cli", "run")
    assert run.words == (*program, file, "--workspace", workspace, "--set", "train.batch_size=8")
    assert run.unit == "detloom-cells"


def test_path_of_a_settings_file_becomes_absolute(build, tmp_path, monkeypatch):
    (tmp_path / "more.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert build("schedule: {cron: 0 3 * * *}", settings=["more.yaml"]).words[-1] == str(tmp_path / "more.yaml")


def test_next_times_follow_the_schedule(build):
    run = build("schedule: {cron: 0 3 * * *, timezone: Europe/Berlin}")
    times = [moment.isoformat() for moment in run.next_times(NOW, 2)]
    assert times == ["2026-03-02T03:00:00+01:00", "2026-03-03T03:00:00+01:00"]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("", r"my run\.yaml: schedule: "),
        ("schedule: {cron: 0 3 * * *, caching: false}", r"schedule\.caching: got false"),
        (
            "schedule: {cron: 0 3 * * *, max_concurrency: 2}",
            r"schedule\.max_concurrency: got 2, allowed .*: 1;",
        ),
        (
            "schedule: {cron: 0 3 * * *, end: '2026-12-31T00:00'}",
            r"schedule\.end: got '2026-12-31T00:00', allowed",
        ),
        ("schedule: {cron: 0 3 * * *, start: '2026-03-01T13:00'}", r"schedule\.start: got '2026-03-01T13:00'"),
    ],
)
def test_settings_that_a_timer_does_not_support_are_refused(build, schedule, message):
    with pytest.raises(InputError, match=message):
        build(schedule)


def test_start_in_the_past_is_ignored(build):
    assert build("schedule: {cron: 0 3 * * *, start: '2026-03-01T11:00'}")


def test_line_break_in_a_setting_is_refused(build):
    with pytest.raises(InputError, match=r"push_to='a\\n\\nb': "):
        build("schedule: {cron: 0 3 * * *}", ("push_to='a\n\nb'",))


def test_variables_of_paths_and_secrets_are_listed_once(build, monkeypatch):
    monkeypatch.setenv("MODELS", "/models")
    webhook = "{url: 'env:HOOK', authorization: 'env:HOOK_TOKEN'}"
    mail = "{host: h, sender: a@b.org, recipients: [a@b.org], user: 'kubernetes:mail/user', password: 'env:HOOK'}"
    run = build(
        "schedule: {cron: 0 3 * * *}\npush_to: ${MODELS}/cells\n"
        f"notifications: {{webhook: {webhook}, email: {mail}}}"
    )
    assert run.variables == ("MODELS", "HOOK", "HOOK_TOKEN")


def test_variables_of_the_options_are_listed(build, tmp_path, monkeypatch):
    for name in ("MODELS", "RECORDS"):
        monkeypatch.setenv(name, "/models")
    schedule = "schedule: {cron: 0 3 * * *}"
    hook = "notifications={webhook: {url: 'env:HOOK'}}"
    assert build(schedule, ("push_to=${MODELS}/cells", hook)).variables == ("MODELS", "HOOK")
    assert build(schedule, settings=["push_to=${MODELS}/cells", "workspace=${RECORDS}"]).variables == (
        "MODELS",
        "RECORDS",
    )
    overrides = tmp_path / "more.yaml"
    overrides.write_text("push_to: ${MODELS}/cells")
    assert build(schedule, settings=[str(overrides)]).variables == ("MODELS",)
