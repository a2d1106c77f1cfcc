from detloom.components.fingerprints import describe_code, package_fingerprint
from detloom.pipelines.doctor import check_image as module
from detloom.pipelines.doctor.check_image import check_image, check_job_code

MODULE = "detloom.pipelines.container.time_limit"
OURS, OTHER = describe_code(MODULE), f"{MODULE}=fedcba9876543210"
GONE = "detloom.no_such_module=0123456789abcdef"


def test_without_a_job_the_package_is_only_shown():
    (result,) = check_job_code()
    assert result.status == "ok"
    assert package_fingerprint() in result.detail


def test_only_tasks_with_other_code_are_named():
    (result,) = check_job_code((OURS,))
    assert (result.status, "1 tasks" in result.detail) == ("ok", True)
    (result,) = check_job_code((OURS, OTHER, GONE))
    assert (result.status, result.expected) == ("error", f"{OTHER}, {GONE}")
    assert "2 of 3 tasks" in result.detail


def test_a_failing_check_does_not_stop_the_others(monkeypatch):
    for name in ("check_tensorflow", "check_packages"):
        monkeypatch.setattr(module, name, lambda: 1 / 0)
    results = {result.name: result for result in check_image((OTHER,))}
    assert "ZeroDivisionError" in results["TensorFlow"].detail
    failed = {name for name, result in results.items() if result.status == "error"}
    assert failed == results.keys() - {"temporary files", "TFX"} == {"code", "packages", "TensorFlow"}
