"""The classes of an ingestion: which there are, under which ids, and what is not among them."""

from collections import Counter

from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.read_annotations import ReadOutcome
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap


def settle_label_map(outcomes: list[ReadOutcome], job: IngestJob) -> LabelMap | None:
    """The label map: given, or the data's own ids, or its declared order, or the sorted names.

    None for images without labels, and where nothing was read that could be labelled.

    Raises:
        InputError: where the sources contradict one another, or have no class at all.
    """
    if job.label_map:
        return LabelMap(job.label_map)
    if job.params.class_names:
        return LabelMap.from_names(job.params.class_names)
    declared: dict[str, tuple[int | None, str]] = {}
    for outcome in outcomes:
        for name, class_id in outcome.class_ids.items():
            known_id, _ = declared.setdefault(name, (class_id, outcome.source))
            if known_id != class_id:
                raise InputError(
                    f"{job.root}/{outcome.source}: category {name!r} has id {class_id}, in another split {known_id}; "
                    "make them equal or name the classes in class_names."
                )
    used = {name for outcome in outcomes for name in outcome.boxes_by_class}
    ids = {name: class_id for name, (class_id, _) in declared.items() if class_id is not None}
    # Exporters write a category 0 that no object has, named after the project (Roboflow); 0 is background here.
    ids = {name: class_id for name, class_id in ids.items() if class_id != 0 or name in used}
    if ids:
        return _from_ids(ids, next(source for class_id, source in declared.values() if class_id is not None), job)
    if declared:
        return LabelMap.from_names(declared)
    if used:
        return LabelMap.from_names(sorted(used))
    all_are_refused = all(outcome.num_in == outcome.counts.num_quarantined for outcome in outcomes)
    if job.data_format == "images" or all_are_refused:  # the latter is told with its reasons, when all is counted
        return None
    sources = ", ".join(sorted({outcome.source for outcome in outcomes if outcome.source})) or "it"
    raise InputError(f"{job.root}: no labelled object in {sources}; name the classes in class_names.")


def _from_ids(ids: dict[str, int], source: str, job: IngestJob) -> LabelMap:
    twice = [class_id for class_id, count in Counter(ids.values()).items() if count > 1]
    if twice:
        names = sorted(name for name, class_id in ids.items() if class_id == twice[0])
        raise InputError(
            f"{job.root}/{source}: categories: id {twice[0]} is that of {', '.join(map(repr, names))}; correct it or "
            "name the classes in class_names."
        )
    try:
        return LabelMap(tuple((class_id, name) for name, class_id in ids.items()))
    except InputError as error:
        raise InputError(f"{job.root}/{source}: categories: {error} Or name the classes in class_names.") from None


def check_classes(outcomes: list[ReadOutcome], job: IngestJob, label_map: LabelMap | None) -> None:
    """Raise for the first object of a class that is not in the label map, unless such boxes are to be refused."""
    if job.params.unknown_class != "fail":
        return
    known = set(label_map.names) if label_map else set()
    for outcome in outcomes:
        if outcome.first_unknown is not None:
            file, detail = outcome.first_unknown
            allowed = sorted(class_id for class_id in outcome.class_ids.values() if class_id is not None)
            raise InputError(
                f"{job.root}/{file}: {detail}, allowed: {allowed or list(outcome.class_ids)[:50]}; correct it, add it "
                "to the categories, or set unknown_class to 'reject' or 'leave_out'."
            )
        for name, (file, record_key) in outcome.first_use.items():
            if name not in known:
                raise InputError(
                    f"{job.root}/{file}: record {record_key!r} has class {name!r}, allowed: {sorted(known)[:50]}; "
                    "correct it, add it to class_names, or set unknown_class to 'reject' or 'leave_out'."
                )
