"""What a card warns of: sentences that follow from its numbers, none that is guessed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detloom.components.pages.formats import format_count, format_number, format_share, format_share_digits, shorten

Json = Mapping[str, Any]

_MAX_NAMES = 8  # in one sentence
_SIZES = {"s": "small (below 32 × 32 px)", "m": "medium", "l": "large (above 96 × 96 px)"}


def find_limits(card: Json, few_objects: int) -> list[str]:
    """Of a card without its limits; a class with fewer than `few_objects` has numbers that say little."""
    evaluation, data, training = card["evaluation"], card["data"], card["training"]
    return [
        *(_of_decision(evaluation) if evaluation else ("No evaluation was given: how good the model is, is unknown.",)),
        *(_of_test_split(evaluation, few_objects) if evaluation else ()),
        *(_of_sizes(evaluation) if evaluation else ()),
        *(_of_slices(evaluation) if evaluation else ()),
        *(_of_scores(evaluation) if evaluation else ()),
        *_of_data(data, card["classes"]),
        *_of_training(card["configuration"], training),
    ]


def _of_decision(evaluation: Json) -> Iterator[str]:
    decision = evaluation["decision"]
    if not decision["blessed"]:
        yield "The model was not blessed: it did not pass its gates, and is not meant to serve."
    elif decision["override"]:
        yield "The model did not pass its gates; it was blessed by an override, which is named under Evaluation."
    if decision["baseline_problem"]:
        yield f"It was not compared with the baseline: {decision['baseline_problem']}."


def _of_test_split(evaluation: Json, few_objects: int) -> Iterator[str]:
    yield (
        f"All numbers are of the {format_count(evaluation['num_images'])} images of the split '{evaluation['split']}'. "
        "Cameras, places and seasons that these do not show were not measured."
    )
    low, high = (evaluation["metrics"]["AP"][end] for end in ("low", "high"))
    if low is not None and high is not None:
        yield (
            "Drawn from the same source, as many other images would give an AP between about "
            f"{format_number(low)} and {format_number(high)} "
            f"({format_share_digits(evaluation['intervals']['confidence'])} % interval)."
        )
    absent = [row["name"] for row in evaluation["per_class"] if not row["num_boxes"]]
    if absent:
        yield f"Not in the test split, so not measured: {_list(absent)}."
    counts = [(row["name"], row["num_boxes"]) for row in evaluation["per_class"]]
    few = [f"{shorten(name)} ({num_boxes})" for name, num_boxes in counts if 0 < num_boxes < few_objects]
    if few:
        yield f"Numbers of classes with fewer than {few_objects} objects in the test split say little: {_list(few)}."


def _of_sizes(evaluation: Json) -> Iterator[str]:
    recalls = {words: evaluation["metrics"][f"AR{size}"]["value"] for size, words in _SIZES.items()}
    known = [f"{words} {format_number(value)}" for words, value in recalls.items() if value is not None]
    if known:
        yield f"Not every object is found; recall (AR) by their size: {', '.join(known)}."
    missing = [words for words, value in recalls.items() if value is None]
    if missing and known:
        yield (
            f"The test split has no object that is {' or '.join(missing)}. A dash, the COCO API's -1, says that "
            "nothing was measured; it is no bad score."
        )
    for row in evaluation["sizes"]:
        if row["AP"] is None:
            yield f"The test split has no objects of the size '{shorten(row['name'])}': nothing was measured."


def _of_slices(evaluation: Json) -> Iterator[str]:
    small = [row["name"] for row in (*evaluation["slices"], *evaluation["object_slices"]) if row["is_small"]]
    if small:
        yield f"Slices with too few images or objects to trust their numbers: {_list(small)}."
    overall = evaluation["metrics"]["AP"]["value"]
    low = evaluation["metrics"]["AP"]["low"]
    if overall is None or low is None:
        return
    weak = [
        f"{shorten(row['name'])} ({format_number(row['AP'])})"
        for row in evaluation["slices"]
        if not row["is_small"] and row["AP"] is not None and row["AP"] < low
    ]
    if weak:
        yield f"Slices whose AP is below the interval of all images ({format_number(overall)}): {_list(weak)}."


def _of_scores(evaluation: Json) -> Iterator[str]:
    error = evaluation["calibration_error"]
    if error is not None:
        yield (
            f"A score is no probability: scores and the share of right detections (IoU 0.50) differ by "
            f"{format_number(error)} on average (expected calibration error)."
        )
    unreached = [row["name"] for row in evaluation["per_class"] if row["num_boxes"] and row["wanted_precision"] is None]
    if unreached:
        yield f"Classes that no score brings to the wanted precision: {_list(unreached)}."
    latency = evaluation["latency"]
    if latency is not None:
        yield (
            f"Latency was measured on the machine that evaluated, with {format_count(latency['num_images'])} images, "
            "one at a time; elsewhere it is another."
        )


def _of_data(data: Json, classes: Sequence[Json]) -> Iterator[str]:
    for finding in (data["health"] or {"findings": ()})["findings"]:
        yield f"Data, {finding['title'][:1].lower()}{finding['title'][1:]}: {finding['sentence'].rstrip('.')}."
    train = data["train_split"]
    untrained = [
        each["name"] for each in classes if each["num_boxes_by_split"] and not each["num_boxes_by_split"].get(train, 0)
    ]
    if untrained:
        yield f"Classes without a single box to train on: {_list(untrained)}."
    ingestion = data["ingestion"]
    if ingestion and (ingestion["num_records_refused"] or ingestion["num_boxes_refused"]):
        yield (
            f"Ingestion refused {format_share(ingestion['share_of_records_refused'])} of the records and "
            f"{format_share(ingestion['share_of_boxes_refused'])} of the boxes; the model knows nothing of them."
        )
    if data["is_what_was_trained_on"] is False:
        yield "The files of these splits are not those that the training names: counts and health are of other data."


def _of_training(configuration: Json, training: Json | None) -> Iterator[str]:
    yield (
        f"At most {format_count(configuration['max_detections'])} objects are returned of one picture. The picture is "
        f"resized on its way in, and small objects with it: {configuration['input']}."
    )
    if training is None:
        return
    if training["num_boxes_dropped"]:
        yield (
            f"{format_count(training['num_boxes_dropped'])} boxes were left out of training, because their picture had "
            "more than training takes."
        )
    if training["num_incidents"]:
        times = "once" if training["num_incidents"] == 1 else f"{training['num_incidents']} times"
        yield f"During training, loss or gradients were not finite {times}; those steps were taken back."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(shorten(name) for name in names[:_MAX_NAMES]) + more
