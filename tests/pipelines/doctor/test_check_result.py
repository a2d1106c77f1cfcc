import json

import pytest

from detloom.pipelines.doctor.check_result import (
    CheckResult,
    ProbeError,
    format_results,
    run_checks,
    run_probe,
)


def passing():
    yield CheckResult(name="one", status="ok", detail="1")
    yield CheckResult(name="two", status="warning", detail="2")


def fail(error):
    raise error


def test_a_check_that_fails_becomes_a_result_and_stops_no_other():
    checks = {"a": lambda: fail(ModuleNotFoundError("No module named 'x'")), "b": passing}
    failed, *others = run_checks({**checks, "c": lambda: fail(ProbeError("its import failed"))})
    assert (failed.name, failed.status) == ("a", "error")
    assert "ModuleNotFoundError: No module named 'x'" in failed.detail
    assert [(result.name, result.detail) for result in others] == [
        ("one", "1"),
        ("two", "2"),
        ("c", "its import failed"),
    ]


def test_a_check_that_takes_too_long_does_not_advise_to_install_packages():
    (result,) = run_checks({"TFX": lambda: fail(TimeoutError("its import took too long"))})
    assert "too busy" in result.next_step
    assert "install" not in result.next_step


def test_a_problem_is_followed_by_its_next_step():
    wrong = CheckResult(name="memory", status="error", detail="2 GB", expected="4 GB", next_step="buy some")
    results = (CheckResult(name="TFX", status="ok", detail="1.16", expected="any"), wrong)
    assert format_results(results) == (
        "  ok       TFX     1.16\n"
        "  error    memory  2 GB\n"
        "                   expected: 4 GB\n"
        "                   next step: buy some\n"
        "\n"
        "1 error"
    )
    fields = {"name": "memory", "status": "error", "detail": "2 GB", "expected": "4 GB", "next_step": "buy some"}
    assert json.loads(format_results(results, as_json=True))[1] == fields


@pytest.mark.parametrize(
    ("statuses", "summary"),
    [
        (("error", "warning", "ok", "warning"), "1 error, 2 warnings"),
        (("warning", "ok"), "1 warning"),
        (("ok",), "No problems found."),
    ],
)
def test_errors_and_warnings_are_counted(statuses, summary):
    results = tuple(CheckResult(name="x", status=status, detail="y") for status in statuses)
    assert format_results(results).endswith(f"\n{summary}")


def test_a_probe_parses_its_last_line():
    code = "import sys; print('chatter'); print('{\"version\": \"' + sys.argv[1] + '\"}')"
    assert run_probe(code, "1.0") == {"version": "1.0"}


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("import time; time.sleep(60)", TimeoutError, "its import took too long, more than 0 s"),
        ("import no_such_module", ProbeError, r"its import failed \(ModuleNotFoundError: .*'no_such_module'\)"),
        ("import os; os.abort()", ProbeError, r"its import failed \(killed by signal 6\)"),
    ],
)
def test_a_probe_that_hangs_or_fails_has_a_reason(code, error, message):
    with pytest.raises(error, match=message):
        run_probe(code, seconds=0.2 if "sleep" in code else 60)
