"""The checks: statistics of all splits in, verdicts out. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detloom.components.dataset_validator.params import CHECKS, DatasetValidatorParams
from detloom.components.dataset_validator.split_statistics import Offenders, SplitStatistics
from detloom.schemas.label_map import LabelMap


@dataclass(frozen=True)
class CheckResult:
    """Verdict of one check.

    Attributes:
        status: "passed", "warned", "failed", or "off".
        detail: one sentence; for a check that did not pass, what and by how much, without a full stop.
        record_keys: the first offenders, where single records are at fault.
    """

    check: str
    status: str
    detail: str
    record_keys: tuple[str, ...] = ()


def run_checks(
    statistics: Mapping[str, SplitStatistics], label_map: LabelMap, params: DatasetValidatorParams
) -> list[CheckResult]:
    """One result a check, in the order of `params.CHECKS`. A split without any record may be missing or empty."""
    findings = {
        "records": _find_unreadable(statistics),
        "examples_per_split": _find_small_splits(statistics, params),
        "boxes": _find_bad_boxes(statistics),
        "class_ids": _find_unknown_ids(statistics, label_map),
        "classes_in_train": _find_missing_classes(statistics, label_map, params),
        "boxes_in_splits": _find_splits_without_boxes(statistics, params),
    }
    assert tuple(findings) == CHECKS
    results = []
    for check, (problem, record_keys, fine) in findings.items():
        severity = getattr(params, check)
        if severity == "off":
            results.append(CheckResult(check, "off", "not checked"))
        elif not problem:
            results.append(CheckResult(check, "passed", fine))
        else:
            status = "failed" if severity == "fail" else "warned"
            results.append(CheckResult(check, status, problem, tuple(record_keys)))
    return results


_Finding = tuple[str, list[str], str]  # the problem ("" if none), offending record keys, what to say when all is well


def _find_unreadable(statistics: Mapping[str, SplitStatistics]) -> _Finding:
    merged = _merge(split.unreadable for split in statistics.values())
    total = merged.count + sum(split.num_examples for split in statistics.values())
    problem = f"{merged.count} of {total} examples cannot be read" if merged.count else ""
    return problem, merged.record_keys, f"all {total} examples can be read"


def _find_small_splits(statistics: Mapping[str, SplitStatistics], params: DatasetValidatorParams) -> _Finding:
    counts = {name: statistics[name].num_examples if name in statistics else 0 for name in params.required_splits}
    small = [f"{name!r} has {count}" for name, count in counts.items() if count < params.min_examples_per_split]
    needed = f"at least {params.min_examples_per_split} needed"
    problem = f"too few examples: split {', '.join(small)}; {needed}" if small else ""
    return problem, [], ", ".join(f"{name} {count}" for name, count in counts.items()) + f"; {needed}"


def _find_bad_boxes(statistics: Mapping[str, SplitStatistics]) -> _Finding:
    by_problem: dict[str, Offenders] = {}
    for split in statistics.values():
        for kind, offenders in split.box_problems.items():
            by_problem.setdefault(kind, Offenders()).add(offenders.count, offenders.record_keys)
    total = sum(split.num_boxes for split in statistics.values())
    merged = _merge(by_problem.values())
    kinds = ", ".join(f"{kind} {offenders.count}" for kind, offenders in sorted(by_problem.items()))
    problem = f"{merged.count} of {total} boxes are unsound ({kinds})" if by_problem else ""
    return problem, merged.record_keys, f"all {total} boxes are sound"


def _find_unknown_ids(statistics: Mapping[str, SplitStatistics], label_map: LabelMap) -> _Finding:
    by_id: dict[int, Offenders] = {}
    for split in statistics.values():
        for class_id, offenders in split.class_id_offenders.items():
            by_id.setdefault(class_id, Offenders()).add(offenders.count, offenders.record_keys)
    merged = _merge(by_id.values())
    ids = ", ".join(f"{class_id} ({offenders.count} boxes)" for class_id, offenders in sorted(by_id.items()))
    problem = f"class ids that the label map lacks: {ids}; it has {list(label_map.class_ids)}" if by_id else ""
    return problem, merged.record_keys, f"all class ids are among the {label_map.num_classes} of the label map"


def _find_missing_classes(
    statistics: Mapping[str, SplitStatistics], label_map: LabelMap, params: DatasetValidatorParams
) -> _Finding:
    found = statistics.get(params.train_split, SplitStatistics()).boxes_by_class_id
    missing = [name for class_id, name in label_map.names_by_id if not found[class_id]]
    problem = (
        f"{len(missing)} of {label_map.num_classes} classes have no box in split {params.train_split!r}: {missing[:20]}"
        if missing
        else ""
    )
    return problem, [], f"all {label_map.num_classes} classes have boxes in split {params.train_split!r}"


def _find_splits_without_boxes(statistics: Mapping[str, SplitStatistics], params: DatasetValidatorParams) -> _Finding:
    empty = [name for name in params.required_splits if name not in statistics or statistics[name].num_boxes == 0]
    problem = f"no box at all in split {', '.join(map(repr, empty))}" if empty else ""
    return problem, [], "every required split has boxes"


def _merge(parts: Iterable[Offenders]) -> Offenders:
    merged = Offenders()
    for part in parts:
        merged.add(part.count, part.record_keys)
    return merged
