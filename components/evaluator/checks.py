"""What has to hold of gates, data and answers before anything is measured; messages name the record or the class."""

from collections.abc import Sequence

import numpy as np

from detloom.components.evaluator.inference import ImageRecord
from detloom.schemas.errors import InputError
from detloom.schemas.gates_config import Gates
from detloom.schemas.label_map import LabelMap
from detloom.schemas.redact import escape
from detloom.schemas.typed_dict import nearest_hint


def check_gates(gates: Gates, label_map: LabelMap) -> None:
    """Raise InputError for a gate on a class that the model does not have."""
    for metric in [each.metric for each in gates.floors] + [each.metric for each in gates.changes]:
        _, slash, class_name = metric.partition("/")
        if slash and class_name not in label_map.names:
            hint = nearest_hint(class_name, label_map.names)
            raise InputError(
                f"gates: got the metric '{metric}', allowed: classes of the model, of which it has "
                f"{len(label_map.names)}.{hint}"
            )


def check_truth(records: Sequence[ImageRecord], label_map: LabelMap) -> None:
    """Raise InputError for a record whose objects the label map does not know."""
    for record in records:
        unknown = set(record.class_ids.tolist()) - set(label_map.class_ids)
        if unknown or not np.isfinite(record.boxes_yxyx_rel).all():
            got = f"the class id {min(unknown)}" if unknown else "a box that is not finite"
            allowed = f"{_count_classes(label_map)} of the label map, finite boxes"
            raise InputError(f"record '{record.source_id}': got {got}, allowed: {allowed}.")


def find_unusable(records: Sequence[ImageRecord], name: str, label_map: LabelMap) -> str | None:
    """What a model answered that cannot be measured, as the end of a sentence."""
    for record in records:
        boxes, scores, class_ids = record.found[name]
        unknown = set(class_ids.tolist()) - set(label_map.class_ids)
        if unknown:
            found = f"the class id {min(unknown)}, which is not among {_count_classes(label_map)} of the label map"
            return f"in record '{record.source_id}' it found {found}"
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            return f"in record '{record.source_id}' it found a box or score that is not finite"
    return None


def say_difference(of_baseline: LabelMap, label_map: LabelMap) -> str | None:
    """The first class that differs, as the end of a sentence; label maps may be long."""
    before, now = dict(of_baseline.names_by_id), dict(label_map.names_by_id)
    different = [
        class_id for class_id in sorted(before.keys() | now.keys()) if before.get(class_id) != now.get(class_id)
    ]
    if not different:
        return None
    shown = [escape(names[different[0]]) if different[0] in names else "none" for names in (before, now)]
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    return f"it has other classes (id {different[0]}: {shown[0]}, of the candidate: {shown[1]}{more})"


def _count_classes(label_map: LabelMap) -> str:
    ids = label_map.class_ids
    return f"the {len(ids)} class ids ({ids[0]} to {ids[-1]})"
