import pytest

from detloom.components.evaluator.slices import measure_objects, measure_slices, split_images
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import ImageSlices, ObjectSlices
from detloom.trainer_module.evaluation.matches import match_detections

CAT = (1, 0, 0, 20, 20)


@pytest.fixture
def pairs(make_image):
    """Three images: a detected cat, a missed cat, a detected and a missed cat."""
    two = [CAT, (1, 50, 40, 90, 50)]
    return [
        make_image(1, truth=[CAT], found=[(*CAT, 0.9)]),
        make_image(2, truth=[CAT]),
        make_image(3, truth=two, found=[(*CAT, 0.8)]),
    ]


FEATURES = [
    {"image/camera": ("north",), "image/hour": (8.0,), "tags": ("wet", "dark")},
    {"image/camera": ("south",), "image/hour": (22.0,), "tags": ("wet",)},
    {"image/camera": ("north",), "image/hour": (12.0,)},
]


def split(pairs, *slices, features=FEATURES):
    return split_images([truth for truth, _ in pairs], features, slices)


@pytest.mark.parametrize(
    ("slices", "members"),
    [
        (ImageSlices(feature="image/camera"), {"image/camera=north": [0, 2], "image/camera=south": [1]}),
        # Images with several values are in several slices, those without one in a slice of their own.
        (ImageSlices(feature="tags"), {"tags=(none)": [2], "tags=dark": [0], "tags=wet": [0, 1]}),
        (
            ImageSlices(feature="image/hour", edges=(6, 12, 20)),
            {"image/hour=6 to below 12": [0], "image/hour=12 to below 20": [2], "image/hour=20 or more": [1]},
        ),
        (ImageSlices(by="num_boxes", edges=(2,)), {"num_boxes=below 2": [0, 1], "num_boxes=2 or more": [2]}),
        (ImageSlices(by="aspect_ratio", edges=(1.2,)), {"aspect_ratio=below 1.2": [0, 1, 2]}),
        (ImageSlices(by="short_side_px", edges=(50,)), {"short_side_px=50 or more": [0, 1, 2]}),
    ],
)
def test_images_are_sliced_in_order(pairs, slices, members):
    found = split(pairs, slices)
    assert found == members
    assert list(found) == list(members)


def test_numbers_keep_all_their_digits(make_image):
    pairs = [make_image(number) for number in range(3)]
    features = [{"day": (20240101,)}, {"day": (20240131,)}, {"day": (0.1 + 0.2,)}]
    names = ["day=0.30000000000000004", "day=20240101", "day=20240131"]
    assert list(split(pairs, ImageSlices(feature="day"), features=features)) == names
    edges = ImageSlices(feature="day", edges=(1, 20240101, 20240115))
    names = ["day=below 1", "day=20240101 to below 20240115", "day=20240115 or more"]
    assert list(split(pairs, edges, features=features)) == names


def test_a_text_feature_with_edges_is_refused(pairs):
    with pytest.raises(InputError, match="image_slices: got 'wet' as 'tags' of image 1"):
        split(pairs, ImageSlices(feature="tags", edges=(1,)))


def test_the_rarest_of_too_many_values_share_a_slice(make_image):
    pairs = [make_image(number) for number in range(103)]
    features = [{"id": (float(min(number, 101)), 0.0)} for number in range(103)]
    slices = split(pairs, ImageSlices(feature="id"), features=features)
    assert len(slices) == 101
    assert slices["id=0"] == list(range(103))
    assert slices["id=101"] == [101, 102]
    assert slices["id=(others)"] == [98, 99]  # of equally rare values, the last ones in alphabetical order


def test_every_slice_is_measured_on_its_images_only(pairs, label_map):
    truth, found = zip(*pairs, strict=True)
    members = split(pairs, ImageSlices(feature="image/camera"))
    north, south = measure_slices(match_detections(truth, found, label_map), label_map, members, min_images=2)
    assert (north.metrics.num_images, north.metrics.num_boxes, north.is_small) == (2, 3, False)
    assert (north.metrics.AR100, south.metrics.AR100, south.is_small) == (pytest.approx(2 / 3), 0, True)


def test_recall_is_measured_by_box_shape_and_position(pairs, label_map):
    truth, found = zip(*pairs, strict=True)
    matches = match_detections(truth, found, label_map)
    slices = (
        ObjectSlices(by="aspect_ratio", edges=(0.5,)),  # the second cat of the third image is 10 wide and 40 high
        ObjectSlices(by="border_distance", edges=(0.05,)),  # only this cat does not touch the border
        ObjectSlices(by="side_px", edges=(20, 30)),  # all have an area of 400: a side of 20
        ObjectSlices(by="relative_area", edges=(0.04,)),
    )
    rows = {row.name: row for row in measure_objects(matches, [(100, 100)] * 3, slices, min_objects=2)}
    narrow, square = rows["aspect_ratio=below 0.5"], rows["aspect_ratio=0.5 or more"]
    assert (narrow.num_objects, narrow.recall50, narrow.recall, narrow.is_small) == (1, 0, 0, True)
    assert (square.num_objects, square.recall50, square.is_small) == (3, pytest.approx(2 / 3), False)
    assert rows["border_distance=0.05 or more"].num_objects == 1
    assert [rows[name].num_objects for name in rows if name.startswith("side_px")] == [0, 4, 0]
    assert rows["side_px=30 or more"].recall is None
    assert rows["relative_area=0.04 or more"].num_objects == 4


def test_crowds_are_excluded_from_object_slices(make_image, label_map):
    truth, found = make_image(1, truth=[CAT], crowds=[0])
    matches = match_detections([truth], [found], label_map)
    (below, above) = measure_objects(matches, [(100, 100)], (ObjectSlices(by="side_px", edges=(5,)),), 1)
    assert (below.num_objects, above.num_objects) == (0, 0)
