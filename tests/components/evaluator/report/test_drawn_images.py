import evaluations
import pytest

from detloom.components.evaluator.report.drawn_images import image_groups, layers_of

START_STEPS = (50, 30)  # of candidate and baseline


def view_of(**values):
    """View an object of an image of 400 x 200 pixels."""
    box = values.pop("box", (20.0, 50.0, 100.0, 60.0))
    drawn = evaluations.ReportObject(**{"label": "cat", "outcome": "plain", "box_xywh_px": box, **values})
    (group,) = image_groups([evaluations.make_image(objects=(drawn,))], START_STEPS)
    return group["images"][0]["objects"][0]


@pytest.mark.parametrize(
    ("layer", "outcome", "steps", "classes"),
    [
        ("candidate", "true", (51,), "candidate true"),
        ("candidate", "false", (50,), "candidate false off"),  # below the threshold with index 50
        ("baseline", "true", (90,), "baseline true off"),
        ("truth", "plain", (51, 0), "truth plain"),
        ("truth", "plain", (50, 90), "truth plain missed"),  # missed by the candidate
        ("truth", "crowd", (0, 0), "truth crowd"),
    ],
)
def test_objects_are_first_drawn_at_the_candidate_s_first_threshold(layer, outcome, steps, classes):
    assert view_of(layer=layer, outcome=outcome, steps=steps)["classes"] == classes
    subject = view_of(layer=layer, outcome=outcome, steps=steps, is_subject=True)["classes"].split()
    # A wrong detection that an image was selected for is drawn at every score.
    expected = [each for each in classes.split() if layer != "candidate" or each != "off"]
    assert sorted(subject) == sorted([*expected, "subject"])


def test_only_images_with_masks_have_a_layer_of_masks():
    drawn = evaluations.make_object(mask_uri="data:image/png;base64,AAAA")
    plain, masked = (evaluations.make_image(objects=objects) for objects in ((), (drawn,)))
    names = ["truth", "true", "false", "missed", "labels"]
    assert [layer for layer, *_ in layers_of([plain])] == names
    assert [layer for layer, *_ in layers_of([plain, masked])] == [*names, "masks"]


def test_labels_stay_inside_the_image():
    def place(layer, *box):
        view = view_of(layer=layer, steps=(90, 90), box=box)
        return view["is_right"], view["text_x"], view["text_y"]

    assert place("candidate", 20.0, 50.0, 100.0, 60.0) == (False, "20", "50")
    assert place("candidate", 290.5, 0.0, 100.0, 60.0) == (True, "390.5", "26")  # below the upper edge
    assert place("truth", 20.0, 50.0, 100.0, 60.0) == (False, "20", "110")
    assert place("truth", 20.0, 50.0, 100.0, 150.0) == (False, "20", "174")  # above the lower edge
