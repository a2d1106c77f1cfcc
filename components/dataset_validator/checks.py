"""Run the checks: compare each finding with its threshold. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from detloom.components.dataset_validator import findings
from detloom.components.dataset_validator.findings import CheckEvidence, CheckFinding, format_apart, format_value
from detloom.schemas.run_file.data_checks import CHECK_NAMES, CountCheck


@dataclass(frozen=True)
class Rule:
    """A check: title, direction of the threshold ("at most" or "at least"), unit, and measuring function."""

    title: str
    bound: str
    unit: str
    find: Callable[[CheckEvidence], CheckFinding]
    next_step: str = ""


_SPLIT_AGAIN = (
    "set data.split_by_ratio instead of data.splits, which keeps such images together unless its group_by or "
    "separate_near_duplicates says otherwise, or remove them from one of the splits"
)

RULES = {
    "records": Rule("Unreadable examples", "at most", "share", findings.find_unreadable),
    "undecodable_images": Rule("Images that cannot be decoded", "at most", "share", findings.find_undecodable),
    "examples_per_split": Rule("Examples in each split", "at least", "count", findings.find_small_splits),
    "boxes": Rule("Invalid boxes", "at most", "share", findings.find_invalid_boxes),
    "class_ids": Rule("Unknown class ids", "at most", "share", findings.find_unknown_ids),
    "boxes_in_splits": Rule("Boxes in each split", "at least", "count", findings.find_splits_without_boxes),
    "classes_in_train": Rule("Training boxes per class", "at least", "count", findings.find_rarest_class),
    "classes_in_splits": Rule(
        "Evaluation boxes per class", "at least", "count", findings.find_class_missing_from_split
    ),
    "class_balance": Rule("Class imbalance", "at most", "ratio", findings.find_imbalance),
    "empty_images": Rule("Images without boxes", "at most", "share", findings.find_empty_images),
    "crowded_images": Rule("Images with too many boxes for training", "at most", "share", findings.find_crowded_images),
    "tiny_boxes": Rule("Tiny boxes", "at most", "share", findings.find_tiny_boxes),
    "huge_boxes": Rule("Huge boxes", "at most", "share", findings.find_huge_boxes),
    "overlapping_boxes": Rule("Duplicate boxes", "at most", "share", findings.find_overlapping_boxes),
    "exact_duplicates": Rule(
        "Training images in other splits",
        "at most",
        "share",
        partial(findings.find_leakage, kind="exact"),
        _SPLIT_AGAIN,
    ),
    "exact_duplicates_within_split": Rule(
        "Identical images in a split", "at most", "share", partial(findings.find_repeats, kind="exact")
    ),
    "near_duplicates": Rule(
        "Near-duplicates of training images in other splits",
        "at most",
        "share",
        partial(findings.find_leakage, kind="near"),
        _SPLIT_AGAIN,
    ),
    "near_duplicates_within_split": Rule(
        "Near-duplicates in a split", "at most", "share", partial(findings.find_repeats, kind="near")
    ),
    "class_drift": Rule("Class drift", "at most", "distance", partial(findings.find_drift, kind="class")),
    "size_drift": Rule("Box size drift", "at most", "distance", partial(findings.find_drift, kind="size")),
    "anchor_recall": Rule("Anchor recall", "at least", "share", findings.find_anchor_recall),
}
assert tuple(RULES) == CHECK_NAMES


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        status: "passed", "warned", "failed", "off", or "skipped" if there is nothing to compare.
        value: None if the check is off or skipped.
        bound: "at most" or "at least": how the threshold limits the value.
        unit: "share", "count", "ratio" or "distance".
        sentence: the finding, the allowed range and the next step, without a full stop.
        record_keys: "<split>/<key>" of the first affected records, if the problem is in single records.
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


def run_checks(evidence: CheckEvidence) -> list[CheckResult]:
    """Run all checks and return their results in the order of `DataChecks`."""
    return [_run(name, getattr(evidence.params.checks, name), evidence) for name in CHECK_NAMES]


def _run(name: str, check: CountCheck, evidence: CheckEvidence) -> CheckResult:
    rule = RULES[name]
    finding = CheckFinding(None, "not checked") if check.severity == "off" else rule.find(evidence)
    if check.severity == "off":
        status, sentence = "off", finding.sentence
    elif finding.value is None:
        status, sentence = "skipped", f"not checked: {finding.sentence}"
    else:
        passes = finding.value <= check.threshold if rule.bound == "at most" else finding.value >= check.threshold
        passes = passes and not finding.never_passes
        fails = check.severity == "fail" and not finding.only_warns
        status = "passed" if passes else "failed" if fails else "warned"
        allowed = "allowed" if rule.bound == "at most" else "required"
        value_text, threshold_text = format_apart(finding.value, check.threshold, rule.unit)
        found = "" if value_text == format_value(finding.value, rule.unit) else f" ({value_text} found)"
        next_step = f"; {rule.next_step}" if rule.next_step and not passes else ""
        sentence = f"{finding.sentence}; {rule.bound} {threshold_text} {allowed}{found}{next_step}"
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
