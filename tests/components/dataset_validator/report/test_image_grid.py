from detloom.components.dataset_validator.report.image_grid import Listed, grid_view
from detloom.components.dataset_validator.report.page_parts import DrawnImage

TITLES = {"boxes": "Invalid boxes"}


def make_image(key, class_names=(), box_sizes=(), split="train"):
    return DrawnImage(
        split=split,
        record_key=key,
        image_hw=(480, 640),
        num_boxes=2,
        data_uri="data:image/jpeg;base64,QUJD",
        class_names=class_names,
        box_sizes=box_sizes,
    )


def view_of(listed, *images):
    return grid_view([Listed(*each) for each in listed], TITLES, {(i.split, i.record_key): i for i in images})


def test_each_record_is_shown_once_in_the_order_of_the_list():
    single = view_of([("sample", "train", "a")], make_image("a", ("cat",), ("small",)))
    assert single["filters"] == []  # each would have a single option
    listed = [("problem:boxes", "train", "b"), ("sample", "train", "a"), ("class:cat", "train", "b")]
    view = view_of(listed, make_image("a"), make_image("b"))
    assert [(each["name"], each["problems"]) for each in view["figures"]] == [
        ("train/b", ("Invalid boxes",)),
        ("train/a", ()),
    ]


def test_figures_have_the_numbers_of_their_options():
    images = [make_image("a", ("dog", "cat"), ("small",)), make_image("b", ("cat",), ("small", "large"), split="eval")]
    listed = [("problem:boxes", "train", "a"), ("sample", "eval", "b")]
    view = view_of(listed, *images)
    options = {each["title"]: [option["text"] for option in each["options"]] for each in view["filters"]}
    assert options == {
        "Class": ["cat (2)", "dog (1)"],
        "Box size": ["large (1)", "small (2)"],
        "Problem": ["Invalid boxes (1)"],
        "Split": ["eval (1)", "train (1)"],
    }
    assert [each["numbers"] for each in view["figures"]] == [
        {"class": "1 0", "box-size": "1", "problem": "0", "split": "1"},
        {"class": "0", "box-size": "1 0", "problem": "", "split": "0"},
    ]


def test_an_image_that_cannot_be_drawn_is_shown_unless_it_is_only_an_example_of_a_class():
    view = view_of([("class:cat", "train", "a"), ("problem:unknown", "train", "b"), ("sample", "train", "c")])
    assert [(each["name"], each["image"], each["problems"]) for each in view["figures"]] == [
        ("train/b", None, ("unknown",)),
        ("train/c", None, ()),
    ]
