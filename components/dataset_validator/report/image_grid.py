"""Grid of example images that a reader can filter by class, box size, problem and split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from detloom.components.dataset_validator.report.page_parts import DrawnImage, DrawnImages, Json
from detloom.components.pages.formats import shorten

FILTER_SCRIPT = "filter_images.js"
_MAX_OPTIONS = 500  # of a filter: the most frequent


class Listed(NamedTuple):
    """An image of the grid and why it was chosen: "problem:<check>", "sample" or "class:<name>"."""

    topic: str
    split: str
    record_key: str


class _Tile(NamedTuple):
    """One image with its values for each filter; `image` is None if it could not be drawn."""

    name: str
    image: DrawnImage | None
    values: Mapping[str, tuple[str, ...]]


def grid_view(listed: Sequence[Listed], titles: Mapping[str, str], images: DrawnImages) -> Json:
    """Build filters and figures, each record once, in the given order.

    A record that could not be drawn has a placeholder, unless it was only chosen as an example of a class.

    Args:
        titles: titles of the checks by name.
    """
    topics: dict[tuple[str, str], list[str]] = {}
    for each in listed:
        topics.setdefault((each.split, each.record_key), []).append(each.topic)
    tiles = [
        _tile(record, found, titles, images)
        for record, found in topics.items()
        if record in images or any(not topic.startswith("class:") for topic in found)
    ]
    filters = [_filter(title, tiles) for title in ("Class", "Box size", "Problem", "Split")]
    return {
        "filters": [each for each in filters if len(each["numbers"]) > (each["title"] != "Problem")],
        "figures": [_figure(tile, filters) for tile in tiles],
    }


def _tile(record: tuple[str, str], topics: Sequence[str], titles: Mapping[str, str], images: DrawnImages) -> _Tile:
    image = images.get(record)
    checks = [topic.partition(":")[2] for topic in topics if topic.startswith("problem:")]
    values = {
        "Class": image.class_names if image else (),
        "Box size": image.box_sizes if image else (),
        "Problem": tuple(dict.fromkeys(titles.get(check, check) for check in checks)),
        "Split": (record[0],),
    }
    return _Tile(f"{record[0]}/{record[1]}", image, values)


def _filter(title: str, tiles: Sequence[_Tile]) -> Json:
    """Return the options of a filter with their numbers of images; figures refer to an option by its number."""
    counts = Counter(value for tile in tiles for value in tile.values[title])
    shown = sorted(dict(counts.most_common(_MAX_OPTIONS)))
    return {
        "title": title,
        "key": title.lower().replace(" ", "-"),
        "numbers": {value: number for number, value in enumerate(shown)},
        "options": [{"number": number, "text": f"{shorten(v)} ({counts[v]})"} for number, v in enumerate(shown)],
    }


def _figure(tile: _Tile, filters: Sequence[Json]) -> Json:
    numbers = {
        each["key"]: " ".join(str(each["numbers"][v]) for v in tile.values[each["title"]] if v in each["numbers"])
        for each in filters
    }
    return {"image": tile.image, "name": tile.name, "problems": tile.values["Problem"], "numbers": numbers}
