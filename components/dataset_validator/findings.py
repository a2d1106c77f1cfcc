"""What each check measures: one function a check. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detloom.components.dataset_validator.format_value import format_value
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.split_statistics import Offenders, SplitStatistics
from detloom.schemas.data_checks import CHECK_NAMES
from detloom.schemas.label_map import LabelMap

_MAX_LISTED = 10  # names in one sentence


@dataclass(frozen=True)
class Evidence:
    """All that is known.

    Attributes:
        statistics: by split; one without any record may be missing or empty.
        exact, near: `Duplicates.to_dict()`; None where they were not looked for.
        drift: `describe_drift(...)`.
        anchors: `AnchorFit.to_dict(...)`, or None.
    """

    statistics: Mapping[str, SplitStatistics]
    label_map: LabelMap
    params: DatasetValidatorParams
    exact: Mapping[str, Any] | None
    near: Mapping[str, Any] | None
    drift: Mapping[str, Any]
    anchors: Mapping[str, Any] | None

    @property
    def train(self) -> SplitStatistics:
        return self.statistics.get(self.params.train_split, SplitStatistics())

    @property
    def held_out(self) -> dict[str, SplitStatistics]:
        return {name: part for name, part in self.statistics.items() if name != self.params.train_split}


@dataclass(frozen=True)
class Finding:
    """What a check measured; `value` None means that it could not, and `sentence` why.

    Attributes:
        is_unsound: it is not fine whatever the threshold.
        only_warns: it does not fail, whatever the severity.
    """

    value: float | None
    sentence: str
    record_keys: Sequence[str] = ()
    is_unsound: bool = False
    only_warns: bool = False


def _find_unreadable(evidence: Evidence) -> Finding:
    merged = _merge({name: part.unreadable for name, part in evidence.statistics.items()})
    total = merged.count + sum(part.num_examples for part in evidence.statistics.values())
    finding = _share(merged, total, "examples cannot be read")
    lost = []
    for name, part in evidence.statistics.items():
        if part.num_missing_shards:
            lost.append(f"split {name!r} lacks {part.num_missing_shards} of {part.num_expected_shards} shards")
        if part.num_damaged_shards:
            lost.append(f"split {name!r} has {part.num_damaged_shards} damaged shards, lost from the damage on")
    return replace(finding, sentence="; ".join([finding.sentence, *lost]), is_unsound=bool(lost))


def _find_undecodable(evidence: Evidence) -> Finding:
    if evidence.params.checks.near_duplicates.severity == "off":
        return Finding(None, "near_duplicates is off, for which images are decoded")
    found = _merge(
        {name: part.findings.get("undecodable_images", Offenders()) for name, part in evidence.statistics.items()}
    )
    return _share(found, sum(part.num_examples for _, part in evidence.statistics.items()), "images cannot be decoded")


def _find_small_splits(evidence: Evidence) -> Finding:
    return _smallest_split(evidence, "examples", lambda part: part.num_examples)


def _find_splits_without_boxes(evidence: Evidence) -> Finding:
    """A split without any label, such as a test set whose labels are kept back, is no fault of the data."""
    finding = _smallest_split(evidence, "boxes", lambda part: part.num_boxes)
    needed, train = evidence.params.checks.boxes_in_splits.threshold, evidence.params.train_split
    parts = {name: evidence.statistics.get(name, SplitStatistics()) for name in evidence.params.required_splits}
    short = {name: part for name, part in parts.items() if part.num_boxes < needed}
    only_unlabelled = all(name != train and part.num_examples and not part.num_boxes for name, part in short.items())
    return replace(finding, only_warns=bool(short) and only_unlabelled)


def _smallest_split(evidence: Evidence, noun: str, count: Callable[[SplitStatistics], int]) -> Finding:
    counts = {name: count(evidence.statistics.get(name, SplitStatistics())) for name in evidence.params.required_splits}
    numbers = ", ".join(f"split {name!r} has {number}" for name, number in counts.items())
    return Finding(min(counts.values()), f"{noun}: {numbers}")


def _find_unsound_boxes(evidence: Evidence) -> Finding:
    kinds: dict[str, int] = {}
    for part in evidence.statistics.values():
        for kind, offenders in part.box_problems.items():
            kinds[kind] = kinds.get(kind, 0) + offenders.count
    merged = _merge_all({name: part.box_problems.values() for name, part in evidence.statistics.items()})
    listed = f" ({', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))})" if kinds else ""
    return _share(merged, _num_boxes(evidence), f"boxes are unsound{listed}")


def _find_unknown_ids(evidence: Evidence) -> Finding:
    by_id: dict[int, int] = {}
    for part in evidence.statistics.values():
        for class_id, offenders in part.class_id_offenders.items():
            by_id[class_id] = by_id.get(class_id, 0) + offenders.count
    merged = _merge_all({name: part.class_id_offenders.values() for name, part in evidence.statistics.items()})
    listed = f": {_list([str(class_id) for class_id in sorted(by_id)])}" if by_id else ""
    return _share(merged, _num_boxes(evidence), f"boxes have class ids that the label map lacks{listed}")


def _find_rarest_class(evidence: Evidence) -> Finding:
    split = f"split {evidence.params.train_split!r}"
    counts = {name: evidence.train.boxes_by_class_id[class_id] for class_id, name in evidence.label_map.names_by_id}
    needed = evidence.params.checks.classes_in_train.threshold
    return _rarest(counts, needed, f"classes in {split}")


def _find_class_missing_from_split(evidence: Evidence) -> Finding:
    others = [name for name in evidence.params.required_splits if name != evidence.params.train_split]
    trained = [pair for pair in evidence.label_map.names_by_id if evidence.train.boxes_by_class_id[pair[0]]]
    if not others or not trained:
        return Finding(None, "there is no split beside the training split" if trained else "no class is trained on")
    counts: dict[str, int] = {}
    for split in others:
        boxes_by_class_id = evidence.statistics.get(split, SplitStatistics()).boxes_by_class_id
        counts |= {f"{split}/{name}": boxes_by_class_id[class_id] for class_id, name in trained}
    return _rarest(counts, evidence.params.checks.classes_in_splits.threshold, "pairs of split and trained class")


def _rarest(counts: Mapping[str, int], needed: float, noun: str) -> Finding:
    rare = {name: count for name, count in counts.items() if count < needed}
    if rare:
        listed = _list([f"{name!r} {count}" for name, count in sorted(rare.items(), key=lambda pair: pair[1])])
        return Finding(min(rare.values()), f"{len(rare)} of {len(counts)} {noun} have too few boxes: {listed}")
    name = min(counts, key=lambda each: counts[each])
    return Finding(counts[name], f"the rarest of {len(counts)} {noun}, {name!r}, has {counts[name]} boxes")


def _find_imbalance(evidence: Evidence) -> Finding:
    counts = {name: evidence.train.boxes_by_class_id[class_id] for class_id, name in evidence.label_map.names_by_id}
    counts = {name: count for name, count in counts.items() if count}
    if len(counts) < 2:
        return Finding(None, f"split {evidence.params.train_split!r} has boxes of {len(counts)} class")
    most, least = max(counts, key=lambda each: counts[each]), min(counts, key=lambda each: counts[each])
    numbers = f"{most!r} {counts[most]} boxes, {least!r} {counts[least]}"
    ratio = counts[most] / counts[least]
    return Finding(ratio, f"the most frequent class has {ratio:.4g} times the boxes of the rarest with any ({numbers})")


# --- images and boxes ------------------------------------------------------------------------------------------------


def _find_empty_images(evidence: Evidence) -> Finding:
    train, split = evidence.train, evidence.params.train_split
    return _share(Offenders(train.num_without_boxes), train.num_examples, f"images of split {split!r} have no box")


def _find_crowded_images(evidence: Evidence) -> Finding:
    model_input = evidence.params.model_input
    if model_input is None:
        return _NO_MODEL
    name = evidence.params.train_split
    found = _merge({name: evidence.train.findings.get("crowded_images", Offenders())})
    noun = f"images of split {name!r} have more boxes than the {model_input.max_boxes} that training takes"
    return _share(found, evidence.train.num_examples, noun)


def _find_tiny_boxes(evidence: Evidence) -> Finding:
    side = evidence.params.checks.tiny_boxes.min_side_px
    return _objects_after_resizing(evidence, "tiny_boxes", f"boxes have a side below {side:g} px after resizing")


def _find_huge_boxes(evidence: Evidence) -> Finding:
    area = format_value(evidence.params.checks.huge_boxes.max_area, "share")
    return _objects_after_resizing(evidence, "huge_boxes", f"boxes cover more than {area} of the model's input")


def _objects_after_resizing(evidence: Evidence, check: str, noun: str) -> Finding:
    return _NO_MODEL if evidence.params.model_input is None else _objects(evidence, check, noun)


def _find_overlapping_boxes(evidence: Evidence) -> Finding:
    iou = evidence.params.checks.overlapping_boxes.min_iou
    noun = f"boxes repeat an earlier one of their class (IoU of {iou:g} or more)"
    return _objects(evidence, "overlapping_boxes", noun)


def _objects(evidence: Evidence, check: str, noun: str) -> Finding:
    return _worst_split(
        {name: part.findings.get(check, Offenders()) for name, part in evidence.statistics.items()},
        {name: part.num_objects for name, part in evidence.statistics.items()},
        noun,
    )


# --- duplicates, drift, anchors --------------------------------------------------------------------------------------


def _find_exact_leakage(evidence: Evidence) -> Finding:
    return _leakage(evidence, evidence.exact, "are, byte by byte, in")


def _find_near_leakage(evidence: Evidence) -> Finding:
    return _leakage(evidence, evidence.near, "look like one, or are one, of")


def _leakage(evidence: Evidence, found: Mapping[str, Any] | None, verb: str) -> Finding:
    if not evidence.held_out or found is None:
        return Finding(None, "there is no split beside the training split" if found else _NOT_LOOKED)
    train = evidence.params.train_split
    keys = {
        name: [
            member["record_key"]
            for group in found["groups"]
            if train in group["size_by_split"]
            for member in group["members"]
            if member["split"] == name
        ]
        for name in evidence.held_out
    }
    offenders = {name: _with_keys(found["across_by_split"].get(name, 0), keys[name]) for name in evidence.held_out}
    totals = {name: part.num_examples for name, part in evidence.held_out.items()}
    return _worst_split(offenders, totals, f"images {verb} split {train!r}")


def _find_exact_repeats(evidence: Evidence) -> Finding:
    return _repeats(evidence, evidence.exact, "images repeat another of their split byte by byte")


def _find_near_repeats(evidence: Evidence) -> Finding:
    if evidence.near is None:
        return Finding(None, "near_duplicates is off")
    return _repeats(evidence, evidence.near, "images look like another of their split")


def _repeats(evidence: Evidence, found: Mapping[str, Any] | None, noun: str) -> Finding:
    if found is None:
        return Finding(None, _NOT_LOOKED)
    keys: dict[str, list[str]] = {name: [] for name in evidence.statistics}
    for group in found["groups"]:
        for name, size in group["size_by_split"].items():
            members = [member["record_key"] for member in group["members"] if member["split"] == name]
            keys[name] += members if size > 1 else []
    offenders = {name: _with_keys(found["within_by_split"].get(name, 0), keys[name]) for name in evidence.statistics}
    return _worst_split(offenders, {name: part.num_examples for name, part in evidence.statistics.items()}, noun)


def _find_class_drift(evidence: Evidence) -> Finding:
    return _drift(evidence, "class", "classes")


def _find_size_drift(evidence: Evidence) -> Finding:
    return _drift(evidence, "size", "box sizes")


def _drift(evidence: Evidence, kind: str, noun: str) -> Finding:
    drift, split = evidence.drift, evidence.params.train_split
    if drift["reason"]:
        return Finding(None, drift["reason"])
    compared = drift["splits"].get(split)
    if compared is None or compared[f"{kind}_distance"] is None:
        return Finding(None, f"split {split!r} has no boxes to compare, now or in the earlier report")
    before = "the earlier report" if drift["previous_span"] is None else f"span {drift['previous_span']}"
    distance, chance = compared[f"{kind}_distance"], compared[f"{kind}_chance"]
    return Finding(
        distance,
        f"the {noun} of split {split!r} have a Jensen-Shannon distance of {distance:.3f} from those of {before} "
        f"(chance alone gives about {chance:.3f})",
    )


def _find_anchor_recall(evidence: Evidence) -> Finding:
    if evidence.params.model_input is None:
        return _NO_MODEL
    anchors, split = evidence.anchors, evidence.params.train_split
    if evidence.params.model_input.anchor_generator is None:
        return Finding(None, "the detector has no anchors")
    if anchors is None:
        return Finding(None, f"anchors of {type(evidence.params.model_input.anchor_generator).__name__} are not built")
    if anchors["recall_at_50"] is None:
        return Finding(None, f"split {split!r} has no boxes")
    recall, mean = format_value(anchors["recall_at_50"], "share"), anchors["mean_best_iou"]
    return Finding(
        anchors["recall_at_50"],
        f"{recall} of {anchors['num_boxes']} boxes of split {split!r} have an anchor with an IoU of 0.5 or more "
        f"(mean of the best {mean:.2f})",
    )


# --- shared ----------------------------------------------------------------------------------------------------------

_NO_MODEL = Finding(None, "no model is given")
_NOT_LOOKED = "images were not compared"


def _share(offenders: Offenders, total: int, noun: str) -> Finding:
    share = offenders.count / total if total else 0.0
    sentence = f"{offenders.count} of {total} {noun}"
    return Finding(share, f"{sentence}: {format_value(share, 'share')}" if share else sentence, offenders.record_keys)


def _worst_split(offenders: Mapping[str, Offenders], totals: Mapping[str, int], noun: str) -> Finding:
    """The largest share of any split is the value; the sentence has the numbers of all splits with any."""
    shares = {name: found.count / totals[name] if totals[name] else 0.0 for name, found in offenders.items()}
    parts = [
        f"{found.count} of {totals[name]} in split {name!r} ({format_value(shares[name], 'share')})"
        for name, found in offenders.items()
        if found.count
    ]
    sentence = f"{noun}: {', '.join(parts)}" if parts else f"none of {sum(totals.values())} {noun}"
    return Finding(max(shares.values(), default=0.0), sentence, _merge(offenders).record_keys)


def _merge(by_split: Mapping[str, Offenders]) -> Offenders:
    return _merge_all({name: [offenders] for name, offenders in by_split.items()})


def _merge_all(by_split: Mapping[str, Iterable[Offenders]]) -> Offenders:
    merged = Offenders()
    for name, parts in by_split.items():
        for part in parts:
            merged.add(part.count, [f"{name}/{key}" for key in part.record_keys])
    return merged


def _with_keys(count: int, record_keys: Iterable[str]) -> Offenders:
    offenders = Offenders()
    offenders.add(count, record_keys)
    return offenders


def _num_boxes(evidence: Evidence) -> int:
    return sum(part.num_boxes for part in evidence.statistics.values())


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


@dataclass(frozen=True)
class Rule:
    """A check's title, what its threshold is for the value, the unit of both, and how the value is found."""

    title: str
    bound: str
    unit: str
    find: Callable[[Evidence], Finding]


RULES = {
    "records": Rule("Unreadable examples", "at most", "share", _find_unreadable),
    "undecodable_images": Rule("Images that cannot be decoded", "at most", "share", _find_undecodable),
    "examples_per_split": Rule("Examples in each split", "at least", "count", _find_small_splits),
    "boxes": Rule("Unsound boxes", "at most", "share", _find_unsound_boxes),
    "class_ids": Rule("Unknown class ids", "at most", "share", _find_unknown_ids),
    "boxes_in_splits": Rule("Boxes in each split", "at least", "count", _find_splits_without_boxes),
    "classes_in_train": Rule("Boxes of each class to train on", "at least", "count", _find_rarest_class),
    "classes_in_splits": Rule(
        "Boxes of each trained class to judge by", "at least", "count", _find_class_missing_from_split
    ),
    "class_balance": Rule("Most frequent class to rarest", "at most", "ratio", _find_imbalance),
    "empty_images": Rule("Images without boxes", "at most", "share", _find_empty_images),
    "crowded_images": Rule("Images with more boxes than trained", "at most", "share", _find_crowded_images),
    "tiny_boxes": Rule("Tiny boxes", "at most", "share", _find_tiny_boxes),
    "huge_boxes": Rule("Huge boxes", "at most", "share", _find_huge_boxes),
    "overlapping_boxes": Rule("Boxes drawn twice", "at most", "share", _find_overlapping_boxes),
    "exact_duplicates": Rule("Training images in other splits", "at most", "share", _find_exact_leakage),
    "exact_duplicates_within_split": Rule("Images repeated in a split", "at most", "share", _find_exact_repeats),
    "near_duplicates": Rule("Look-alikes of training images in other splits", "at most", "share", _find_near_leakage),
    "near_duplicates_within_split": Rule("Look-alikes in a split", "at most", "share", _find_near_repeats),
    "class_drift": Rule("Drift of classes", "at most", "distance", _find_class_drift),
    "size_drift": Rule("Drift of box sizes", "at most", "distance", _find_size_drift),
    "anchor_recall": Rule("Boxes that an anchor fits", "at least", "share", _find_anchor_recall),
}
assert tuple(RULES) == CHECK_NAMES
