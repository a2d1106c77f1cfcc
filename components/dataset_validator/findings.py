"""Measure the value of each check, one function per check. Pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.statistics.split_statistics import Offenders, SplitStatistics
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import list_first


@dataclass(frozen=True)
class CheckEvidence:
    """Input of the checks.

    Attributes:
        statistics: by split; a split without records may be missing or empty.
        duplicates: result of `Duplicates.to_dict`.
        drift: result of `describe_drift`.
        anchors: result of `AnchorFit.to_dict`, or None.
    """

    statistics: Mapping[str, SplitStatistics]
    label_map: LabelMap
    params: DatasetValidatorParams
    duplicates: Mapping[str, Any]
    drift: Mapping[str, Any]
    anchors: Mapping[str, Any] | None

    @property
    def train(self) -> SplitStatistics:
        return self.statistics.get(self.params.train_split, SplitStatistics())

    @property
    def held_out(self) -> dict[str, SplitStatistics]:
        return {name: part for name, part in self.statistics.items() if name != self.params.train_split}


@dataclass(frozen=True)
class CheckFinding:
    """Measurement of one check.

    Attributes:
        value: None if it could not be measured; then `sentence` is the reason.
        never_passes: the check does not pass, whatever the threshold is.
        only_warns: the check does not fail, whatever the severity is.
    """

    value: float | None
    sentence: str
    record_keys: Sequence[str] = ()
    never_passes: bool = False
    only_warns: bool = False


def find_unreadable(evidence: CheckEvidence) -> CheckFinding:
    merged = _merge({name: [part.unreadable] for name, part in evidence.statistics.items()})
    finding = _share(merged, merged.count + _num_examples(evidence), "examples cannot be read")
    lost = []
    for name, part in evidence.statistics.items():
        if part.num_missing_shards:
            lost.append(f"split {name!r}: {part.num_missing_shards} of {part.num_expected_shards} shards are missing")
        if part.num_damaged_shards:
            lost.append(
                f"split {name!r}: {part.num_damaged_shards} shards are damaged and could only be read up to the damage"
            )
    return replace(finding, sentence="; ".join([finding.sentence, *lost]), never_passes=bool(lost))


def find_undecodable(evidence: CheckEvidence) -> CheckFinding:
    found = _merge({name: [part.offenders("undecodable_images")] for name, part in evidence.statistics.items()})
    return _share(found, _num_examples(evidence), "images cannot be decoded")


def find_small_splits(evidence: CheckEvidence) -> CheckFinding:
    return _smallest_split(evidence, "examples", lambda part: part.num_examples)


def find_splits_without_boxes(evidence: CheckEvidence) -> CheckFinding:
    """Return the smallest number of boxes; only warn about a split with images but no labels at all.

    Such a split can be intended: a test set whose labels are withheld.
    """
    finding = _smallest_split(evidence, "boxes", lambda part: part.num_boxes)
    needed, train = evidence.params.checks.boxes_in_splits.threshold, evidence.params.train_split
    parts = {name: evidence.statistics.get(name, SplitStatistics()) for name in evidence.params.required_splits}
    short = {name: part for name, part in parts.items() if part.num_boxes < needed}
    only_unlabelled = all(name != train and part.num_examples and not part.num_boxes for name, part in short.items())
    return replace(finding, only_warns=bool(short) and only_unlabelled)


def _smallest_split(evidence: CheckEvidence, noun: str, count: Callable[[SplitStatistics], int]) -> CheckFinding:
    counts = {name: count(evidence.statistics.get(name, SplitStatistics())) for name in evidence.params.required_splits}
    numbers = ", ".join(f"split {name!r} has {number}" for name, number in counts.items())
    return CheckFinding(min(counts.values()), f"{noun}: {numbers}")


def find_invalid_boxes(evidence: CheckEvidence) -> CheckFinding:
    kinds: dict[str, int] = {}
    for part in evidence.statistics.values():
        for kind, offenders in part.box_problems.items():
            kinds[kind] = kinds.get(kind, 0) + offenders.count
    merged = _merge({name: part.box_problems.values() for name, part in evidence.statistics.items()})
    listed = f" ({', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))})" if kinds else ""
    return _share(merged, _num_boxes(evidence), f"boxes are invalid{listed}")


def find_unknown_ids(evidence: CheckEvidence) -> CheckFinding:
    by_id: dict[int, int] = {}
    for part in evidence.statistics.values():
        for class_id, offenders in part.class_id_offenders.items():
            by_id[class_id] = by_id.get(class_id, 0) + offenders.count
    merged = _merge({name: part.class_id_offenders.values() for name, part in evidence.statistics.items()})
    listed = f": {list_first([str(class_id) for class_id in sorted(by_id)])}" if by_id else ""
    return _share(merged, _num_boxes(evidence), f"boxes have class ids that are not in the label map{listed}")


def find_rarest_class(evidence: CheckEvidence) -> CheckFinding:
    split = f"split {evidence.params.train_split!r}"
    counts = {name: evidence.train.boxes_by_class_id[class_id] for class_id, name in evidence.label_map.names_by_id}
    needed = evidence.params.checks.classes_in_train.threshold
    return _rarest(counts, needed, f"classes in {split}")


def find_class_missing_from_split(evidence: CheckEvidence) -> CheckFinding:
    others = [name for name in evidence.params.required_splits if name != evidence.params.train_split]
    trained = [pair for pair in evidence.label_map.names_by_id if evidence.train.boxes_by_class_id[pair[0]]]
    if not others or not trained:
        return CheckFinding(None, _NO_OTHER_SPLIT if trained else "the training split has no boxes")
    counts: dict[str, int] = {}
    for split in others:
        boxes_by_class_id = evidence.statistics.get(split, SplitStatistics()).boxes_by_class_id
        counts |= {f"{split}/{name}": boxes_by_class_id[class_id] for class_id, name in trained}
    return _rarest(counts, evidence.params.checks.classes_in_splits.threshold, "combinations of split and class")


def _rarest(counts: Mapping[str, int], needed: float, noun: str) -> CheckFinding:
    rare = {name: count for name, count in counts.items() if count < needed}
    if rare:
        listed = list_first([f"{name!r} {count}" for name, count in sorted(rare.items(), key=lambda pair: pair[1])])
        return CheckFinding(min(rare.values()), f"{len(rare)} of {len(counts)} {noun} have too few boxes: {listed}")
    name = min(counts, key=lambda each: counts[each])
    return CheckFinding(counts[name], f"the rarest of {len(counts)} {noun}, {name!r}, has {counts[name]} boxes")


def find_imbalance(evidence: CheckEvidence) -> CheckFinding:
    counts = {name: evidence.train.boxes_by_class_id[class_id] for class_id, name in evidence.label_map.names_by_id}
    counts = {name: count for name, count in counts.items() if count}
    if len(counts) < 2:
        return CheckFinding(None, f"split {evidence.params.train_split!r} has boxes of fewer than two classes")
    most, least = max(counts, key=lambda each: counts[each]), min(counts, key=lambda each: counts[each])
    numbers = f"{most!r} {counts[most]} boxes, {least!r} {counts[least]}"
    ratio = counts[most] / counts[least]
    return CheckFinding(ratio, f"the most frequent class has {ratio:.4g} times as many boxes as the rarest ({numbers})")


# --- images and boxes ------------------------------------------------------------------------------------------------


def find_empty_images(evidence: CheckEvidence) -> CheckFinding:
    train, split = evidence.train, evidence.params.train_split
    return _share(Offenders(train.num_without_boxes), train.num_examples, f"images of split {split!r} have no box")


def find_crowded_images(evidence: CheckEvidence) -> CheckFinding:
    model_input = evidence.params.model_input
    if model_input is None:
        return _NO_MODEL
    name = evidence.params.train_split
    found = _merge({name: [evidence.train.offenders("crowded_images")]})
    noun = f"images of split {name!r} have more than {model_input.max_boxes} boxes, the maximum in training"
    return _share(found, evidence.train.num_examples, noun)


def find_tiny_boxes(evidence: CheckEvidence) -> CheckFinding:
    side = evidence.params.checks.tiny_boxes.min_side_px
    return _objects_after_resizing(evidence, "tiny_boxes", f"boxes have a side below {side:g} px after resizing")


def find_huge_boxes(evidence: CheckEvidence) -> CheckFinding:
    area = format_value(evidence.params.checks.huge_boxes.max_area, "share")
    return _objects_after_resizing(evidence, "huge_boxes", f"boxes cover more than {area} of the model's input")


def _objects_after_resizing(evidence: CheckEvidence, check: str, noun: str) -> CheckFinding:
    return _NO_MODEL if evidence.params.model_input is None else _objects(evidence, check, noun)


def find_overlapping_boxes(evidence: CheckEvidence) -> CheckFinding:
    iou = evidence.params.checks.overlapping_boxes.min_iou
    noun = f"boxes duplicate another box of the same class (IoU {iou:g} or more)"
    return _objects(evidence, "overlapping_boxes", noun)


def _objects(evidence: CheckEvidence, check: str, noun: str) -> CheckFinding:
    offenders = {name: part.offenders(check) for name, part in evidence.statistics.items()}
    totals = {name: part.num_objects for name, part in evidence.statistics.items()}
    return _worst_split(offenders, totals, noun)


# --- duplicates, drift, anchors --------------------------------------------------------------------------------------


def find_leakage(evidence: CheckEvidence, kind: Literal["exact", "near"]) -> CheckFinding:
    """Find images of other splits that have a duplicate in the training split."""
    found, train = evidence.duplicates[kind], evidence.params.train_split
    if found is None:
        return CheckFinding(None, f"{kind}_duplicates is off")
    if not evidence.held_out:
        return CheckFinding(None, _NO_OTHER_SPLIT)
    keys: dict[str, list[str]] = {name: [] for name in evidence.held_out}
    for group in found["groups"]:
        if train in group["size_by_split"]:
            for member in group["members"]:
                if member["split"] != train:
                    keys[member["split"]].append(member["record_key"])
    offenders = {name: _with_keys(found["across_by_split"].get(name, 0), keys[name]) for name in evidence.held_out}
    totals = {name: part.num_examples for name, part in evidence.held_out.items()}
    return _at_least(
        found, _worst_split(offenders, totals, f"images are {_RELATIONS[kind]} an image of split {train!r}")
    )


def _at_least(found: Mapping[str, Any], finding: CheckFinding) -> CheckFinding:
    """Add to the sentence that the number is a lower bound, if it is one."""
    if found["is_complete"]:
        return finding
    return replace(finding, sentence=f"{finding.sentence}; there may be more, because not all pairs were compared")


def find_repeats(evidence: CheckEvidence, kind: Literal["exact", "near"]) -> CheckFinding:
    """Find images that have a duplicate in their own split."""
    found = evidence.duplicates[kind]
    if found is None:
        return CheckFinding(None, f"{kind}_duplicates is off")
    keys: dict[str, list[str]] = {name: [] for name in evidence.statistics}
    for group in found["groups"]:
        for name, size in group["size_by_split"].items():
            members = [member["record_key"] for member in group["members"] if member["split"] == name]
            keys[name] += members if size > 1 else []
    offenders = {name: _with_keys(found["within_by_split"].get(name, 0), keys[name]) for name in evidence.statistics}
    totals = {name: part.num_examples for name, part in evidence.statistics.items()}
    return _at_least(
        found, _worst_split(offenders, totals, f"images are {_RELATIONS[kind]} another image of their split")
    )


def find_drift(evidence: CheckEvidence, kind: Literal["class", "size"]) -> CheckFinding:
    """Measure the distance to the earlier report of the boxes' classes or sizes."""
    noun = "classes" if kind == "class" else "box sizes"
    drift, split = evidence.drift, evidence.params.train_split
    if drift["reason"]:
        return CheckFinding(None, drift["reason"])
    compared = drift["splits"].get(split)
    if compared is None or compared[f"{kind}_distance"] is None:
        return CheckFinding(None, f"split {split!r} has no boxes in this report or in the earlier one")
    before = "the earlier report" if drift["previous_span"] is None else f"span {drift['previous_span']}"
    distance, chance = compared[f"{kind}_distance"], compared[f"{kind}_chance"]
    return CheckFinding(
        distance,
        f"the {noun} of split {split!r} have a Jensen-Shannon distance of {distance:.3f} from those of {before} "
        f"(about {chance:.3f} is expected by chance)",
    )


def find_anchor_recall(evidence: CheckEvidence) -> CheckFinding:
    if evidence.params.model_input is None:
        return _NO_MODEL
    anchors, split = evidence.anchors, evidence.params.train_split
    if evidence.params.model_input.anchor_generator is None:
        return CheckFinding(None, "the detector has no anchors")
    if anchors is None:
        name = type(evidence.params.model_input.anchor_generator).__name__
        return CheckFinding(None, f"anchors of {name} are not supported by this check")
    if anchors["recall_at_50"] is None:
        return CheckFinding(None, f"split {split!r} has no boxes")
    recall, mean = format_value(anchors["recall_at_50"], "share"), anchors["mean_best_iou"]
    return CheckFinding(
        anchors["recall_at_50"],
        f"{recall} of {anchors['num_boxes']} boxes of split {split!r} have an anchor with an IoU of 0.5 or more "
        f"(mean best IoU {mean:.2f})",
    )


# --- shared ----------------------------------------------------------------------------------------------------------

_NO_MODEL = CheckFinding(None, "no model is given")
_NO_OTHER_SPLIT = "there is no split other than the training split"
_RELATIONS = {"exact": "byte-identical to", "near": "near-duplicates of"}


def _share(offenders: Offenders, total: int, noun: str) -> CheckFinding:
    share = offenders.count / total if total else 0.0
    sentence = f"{offenders.count} of {total} {noun}"
    return CheckFinding(
        share, f"{sentence}: {format_value(share, 'share')}" if share else sentence, offenders.record_keys
    )


def _worst_split(offenders: Mapping[str, Offenders], totals: Mapping[str, int], noun: str) -> CheckFinding:
    """Return the largest share of any split; the sentence lists all affected splits."""
    shares = {name: found.count / totals[name] if totals[name] else 0.0 for name, found in offenders.items()}
    parts = [
        f"{found.count} of {totals[name]} in split {name!r} ({format_value(shares[name], 'share')})"
        for name, found in offenders.items()
        if found.count
    ]
    sentence = f"{noun}: {', '.join(parts)}" if parts else f"none of {sum(totals.values())} {noun}"
    merged = _merge({name: [found] for name, found in offenders.items()})
    return CheckFinding(max(shares.values(), default=0.0), sentence, merged.record_keys)


def _merge(by_split: Mapping[str, Iterable[Offenders]]) -> Offenders:
    merged = Offenders()
    for name, parts in by_split.items():
        for part in parts:
            merged.add(part.count, [f"{name}/{key}" for key in part.record_keys])
    return merged


def _with_keys(count: int, record_keys: Iterable[str]) -> Offenders:
    offenders = Offenders()
    offenders.add(count, record_keys)
    return offenders


def _num_examples(evidence: CheckEvidence) -> int:
    return sum(part.num_examples for part in evidence.statistics.values())


def _num_boxes(evidence: CheckEvidence) -> int:
    return sum(part.num_boxes for part in evidence.statistics.values())


def format_value(value: float | None, unit: str) -> str:
    """Format a value; shares become percentages, and None a dash."""
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:.3f}" if unit == "distance" else f"{value:.6g}"


def format_apart(value: float | None, threshold: float, unit: str) -> tuple[str, str]:
    """Format both with `format_value`, with more digits if different numbers would look the same."""
    texts = format_value(value, unit), format_value(threshold, unit)
    suffix, factor = (" %", 100) if unit == "share" else ("", 1)
    for digits in range(4, 18):
        if value is None or texts[0] != texts[1] or value == threshold:
            break
        texts = f"{factor * value:.{digits}g}{suffix}", f"{factor * threshold:.{digits}g}{suffix}"
    return texts
