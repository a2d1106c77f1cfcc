"""The checks: what is known about the data in, one verdict a check out. Pure."""

from dataclasses import dataclass

from detloom.components.dataset_validator.findings import RULES, Evidence, Finding
from detloom.components.dataset_validator.format_value import format_apart, format_value
from detloom.schemas.data_checks import CHECK_NAMES, Check


@dataclass(frozen=True)
class CheckResult:
    """Verdict of one check.

    Attributes:
        status: "passed", "warned", "failed", "off", or "skipped" where there is nothing to compare.
        value: None where the check is off or skipped.
        bound: "at most" or "at least": what the threshold is for the value.
        unit: "share", "count", "ratio" or "distance".
        sentence: what was found and what is allowed, without a full stop.
        record_keys: "<split>/<key>" of the first offenders, where single records are at fault.
    """

    check: str
    title: str
    severity: str
    status: str
    value: float | None
    threshold: float
    bound: str
    unit: str
    sentence: str
    record_keys: tuple[str, ...] = ()


def run_checks(evidence: Evidence) -> list[CheckResult]:
    """One result a check, in the order of `DataChecks`."""
    return [_run(name, getattr(evidence.params.checks, name), evidence) for name in CHECK_NAMES]


def _run(name: str, check: Check, evidence: Evidence) -> CheckResult:
    rule = RULES[name]
    finding = Finding(None, "not checked") if check.severity == "off" else rule.find(evidence)
    if check.severity == "off":
        status, sentence = "off", finding.sentence
    elif finding.value is None:
        status, sentence = "skipped", f"not checked: {finding.sentence}"
    else:
        is_fine = finding.value <= check.threshold if rule.bound == "at most" else finding.value >= check.threshold
        is_fine = is_fine and not finding.is_unsound
        fails = check.severity == "fail" and not finding.only_warns
        status = "passed" if is_fine else "failed" if fails else "warned"
        allowed = "allowed" if rule.bound == "at most" else "needed"
        value_text, threshold_text = format_apart(finding.value, check.threshold, rule.unit)
        found = "" if value_text == format_value(finding.value, rule.unit) else f" ({value_text} found)"
        sentence = f"{finding.sentence}; {rule.bound} {threshold_text} {allowed}{found}"
    return CheckResult(
        check=name,
        title=rule.title,
        severity=check.severity,
        status=status,
        value=finding.value,
        threshold=check.threshold,
        bound=rule.bound,
        unit=rule.unit,
        sentence=sentence,
        record_keys=tuple(finding.record_keys) if status in ("warned", "failed") else (),
    )
