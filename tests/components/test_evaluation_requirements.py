import pytest

from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices
from detloom.schemas.run_file.gates import Gates, MetricChange, MetricFloor

NO_GATES = Gates()
CAT_DOG = LabelMap.from_names(["cat", "dog"])
FEATURES = [{"image/camera": ("north",), "image/hour": (8.0,)}, {"tags": ("wet", "dark")}, {}]


def needs(*slices, gates=NO_GATES):
    return EvaluationRequirements.of_settings(EvaluatorSettings(image_slices=slices), gates, "test")


def test_settings_that_only_change_the_decision_are_no_needs():
    gates = Gates(floors=(MetricFloor(metric="AP", min=0.5), MetricFloor(metric="AP50/dog", min=0.1)))
    by_property = ImageSlices(by="num_boxes", edges=(1,))
    assert needs(by_property, gates=gates) == EvaluationRequirements(class_metrics=("AP50/dog",))


@pytest.mark.parametrize(
    "gates",
    [
        Gates(floors=(MetricFloor(metric="AP/cta", min=0.5),)),
        Gates(changes=(MetricChange(metric="AP/cta", min_change=0),)),
    ],
)
def test_a_gate_on_an_unknown_class_is_refused(gates):
    needs(gates=gates).check_classes(LabelMap.from_names(["cta"]))
    with pytest.raises(InputError, match=r"gates: got the metric 'AP/cta', allowed: .* 2 .*'cat'"):
        needs(gates=gates).check_classes(CAT_DOG)


def test_a_feature_that_no_example_has_is_refused():
    needs(ImageSlices(feature="tags")).check_features(FEATURES)  # one example has it
    with pytest.raises(InputError, match=r"image_slices: got the feature 'image/cam', .* 3 examples of 'test'"):
        needs(ImageSlices(feature="image/cam")).check_features(FEATURES)


def test_a_text_with_edges_is_refused():
    needs(ImageSlices(feature="image/hour", edges=(6, 12))).check_features(FEATURES)
    with pytest.raises(InputError, match="image_slices: got 'wet' as 'tags' in 'test', allowed: numbers"):
        needs(ImageSlices(feature="tags", edges=(1,))).check_features(FEATURES)


def test_the_first_examples_are_read_past_damaged_files(tmp_path, make_example, write_records):
    files = [str(tmp_path / name) for name in ("data-0", "data-1")]
    write_records(tmp_path / "data-1", [make_example([], [])])
    for content in (b"damaged", b""):
        (tmp_path / "data-0").write_bytes(content)
        needs(ImageSlices(feature="image/height")).check_examples(files)
        with pytest.raises(InputError, match=r"got the feature 'no', which none of the first 1 examples"):
            needs(ImageSlices(feature="no")).check_examples(files)
