"""Find the limits of a model: warnings that follow from the numbers of its card."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detloom.components.pages.formats import format_count, format_number, format_share, format_share_digits, shorten
from detloom.schemas.errors import list_first

Json = Mapping[str, Any]

_SIZES = {"s": "small (below 32 × 32 px)", "m": "medium", "l": "large (above 96 × 96 px)"}


def find_limits(card: Json, few_objects: int) -> list[str]:
    """Return the limits of a card; numbers of a class with fewer than `few_objects` objects are not reliable."""
    evaluation, data, training = card["evaluation"], card["data"], card["training"]
    return [
        *(_of_decision(evaluation) if evaluation else ("The quality is unknown: no evaluation was given.",)),
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
        yield "The model was not blessed: it failed its gates and should not be deployed."
    elif decision["override"]:
        yield "The model failed its gates and was blessed by an override; see Evaluation."
    if decision["baseline_problem"]:
        yield f"The model was not compared with the baseline: {decision['baseline_problem']}."


def _of_test_split(evaluation: Json, few_objects: int) -> Iterator[str]:
    yield (
        f"All metrics are measured on the {format_count(evaluation['num_images'])} images of the split "
        f"'{evaluation['split']}'. Cameras, places and seasons that are not in these images were not evaluated."
    )
    low, high = (evaluation["metrics"]["AP"][end] for end in ("low", "high"))
    if low is not None and high is not None:
        yield (
            "On another sample of the same size from the same source, expect an AP between about "
            f"{format_number(low)} and {format_number(high)} "
            f"({format_share_digits(evaluation['intervals']['confidence'])} % interval)."
        )
    absent = [row["name"] for row in evaluation["per_class"] if not row["num_boxes"]]
    if absent:
        yield f"Classes without objects in the test split, so not evaluated: {_list(absent)}."
    counts = [(row["name"], row["num_boxes"]) for row in evaluation["per_class"]]
    few = [f"{shorten(name)} ({num_boxes})" for name, num_boxes in counts if 0 < num_boxes < few_objects]
    if few:
        yield f"Classes with unreliable metrics (fewer than {few_objects} objects in the test split): {_list(few)}."


def _of_sizes(evaluation: Json) -> Iterator[str]:
    recalls = {words: evaluation["metrics"][f"AR{size}"]["value"] for size, words in _SIZES.items()}
    known = [f"{words} {format_number(value)}" for words, value in recalls.items() if value is not None]
    if known:
        yield f"Not every object is found. Recall (AR) by object size: {', '.join(known)}."
    sizes = [(row["name"], row["AP"]) for row in evaluation["sizes"]]
    missing = [name for name, value in (*recalls.items(), *sizes) if value is None]
    if missing:
        yield (
            f"The test split has no objects of the sizes {_list(missing)}. A dash (the COCO API's -1) means not "
            "measured; it is not a low score."
        )


def _of_slices(evaluation: Json) -> Iterator[str]:
    small = [row["name"] for row in (*evaluation["slices"], *evaluation["object_slices"]) if row["is_small"]]
    if small:
        yield f"Slices with unreliable metrics (too few images or objects): {_list(small)}."
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
        yield f"Slices with an AP below the interval of all images (AP {format_number(overall)}): {_list(weak)}."


def _of_scores(evaluation: Json) -> Iterator[str]:
    error = evaluation["calibration_error"]
    if error is not None:
        best = evaluation["best_f1"]
        at_best = ""
        if best:
            least, precision = format_number(best["min_score"]), format_number(best["precision"])
            at_best = (
                f"detections with a score of at least {least} (best F1) have a precision of {precision} at IoU 0.50. "
            )
        yield (
            f"A score is not a probability: {at_best}Over all detections, most of which have low "
            f"scores, score and precision differ by {format_number(error)} on average (expected calibration error)."
        )
    unreached = [row["name"] for row in evaluation["per_class"] if row["num_boxes"] and row["wanted_precision"] is None]
    if unreached:
        yield f"Classes for which no score threshold reaches the wanted precision: {_list(unreached)}."


def _of_data(data: Json, classes: Sequence[Json]) -> Iterator[str]:
    for finding in (data["health"] or {"findings": ()})["findings"]:
        yield f"Data set check '{finding['title']}': {finding['sentence'].rstrip('.')}."
    train = data["train_split"]
    untrained = [
        each["name"] for each in classes if each["num_boxes_by_split"] and not each["num_boxes_by_split"].get(train, 0)
    ]
    if untrained:
        yield f"Classes without training boxes: {_list(untrained)}."
    ingestion = data["ingestion"]
    if ingestion and (ingestion["num_records_refused"] or ingestion["num_boxes_refused"]):
        yield (
            f"Ingestion rejected {format_share(ingestion['share_of_records_refused'])} of the records and "
            f"{format_share(ingestion['share_of_boxes_refused'])} of the boxes; the model was not trained on them."
        )
    if data["is_what_was_trained_on"] is False:
        yield "The files of these splits are not the training run's files: counts and checks are of other data."


def _of_training(configuration: Json, training: Json | None) -> Iterator[str]:
    yield (
        f"The model returns at most {format_count(configuration['max_detections'])} objects per image. Images are "
        f"resized, so small objects become smaller: {configuration['input']}."
    )
    if training is None:
        return
    if training["num_boxes_dropped"]:
        yield (
            f"{format_count(training['num_boxes_dropped'])} boxes were not used in training, because their image had "
            "more than the maximum."
        )
    if training["num_incidents"]:
        times = "once" if training["num_incidents"] == 1 else f"{training['num_incidents']} times"
        yield f"During training, loss or gradients were not finite {times}; those steps were reverted."


def _list(names: Sequence[str]) -> str:
    return list_first(map(shorten, names), 8)
