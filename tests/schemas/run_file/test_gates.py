import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices, ObjectSlices, SizeBin
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricChange, MetricFloor, Override

GOOD = {"reason": "The camera was replaced.", "by": "Ada", "until": "2026-12-31"}


@pytest.mark.parametrize("metric", ["AP", "AP50/cat", "ARl/a/b"])
def test_gate_metrics_are_accepted(metric):
    assert MetricFloor(metric=metric, min=0.5).metric == metric


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MetricFloor(metric="AP_50", min=0.5), r"metric: got 'AP_50'.*Did you mean 'AP50'"),
        (lambda: MetricFloor(metric="AP50/", min=0.5), r"metric: got 'AP50/'.*AP50/cat"),
        (lambda: MetricFloor(metric="loss", min=0.5), r"metric: got 'loss'"),
        (lambda: MetricFloor(metric="AP", min=80), r"min: got 80, allowed: 0 to 1 \(not percent\)"),
        (lambda: MetricChange(metric="AP", min_change=-2), r"min_change: got -2"),
        (lambda: BaselineGate(min_ap_change=5), r"min_ap_change: got 5, allowed: -1 to 1"),
        (lambda: BaselineGate(confidence=1), r"confidence: got 1, allowed"),
        (lambda: BaselineGate(num_resamples=10), r"num_resamples: got 10, allowed: 100 or more"),
        (lambda: LatencyGate(max_median_ms=0), r"max_median_ms: got 0, allowed: above 0"),
        (lambda: LatencyGate(max_ratio=1.1, num_images=0), r"num_images: got 0, allowed: 1 or more"),
        (lambda: Gates(max_model_mib=-1), r"max_model_mib: got -1"),
        (lambda: Override(**{**GOOD, "reason": "wanted"}), r"reason: got 'wanted', allowed"),
        (lambda: Override(**{**GOOD, "by": " "}), r"by: must not be empty"),
        (lambda: Override(**{**GOOD, "until": "soon"}), r"until: got 'soon', allowed: a day such as 2026-12-31"),
        (lambda: ImageSlices(), r"feature: got neither"),
        (lambda: ImageSlices(feature="a", by="num_boxes", edges=(1,)), r"feature: got both"),
        (lambda: ImageSlices(by="num_boxes"), r"edges: got none, allowed: one number or more"),
        (lambda: ObjectSlices(by="side_px", edges=(3, 2)), r"edges: got \[3, 2\], allowed: rising finite numbers"),
        (lambda: ObjectSlices(by="side_px", edges=(1, float("nan"))), r"edges: got \[1, nan\], allowed: rising finite"),
        (lambda: SizeBin(name="", max_side_px=3), r"name: must not be empty"),
        (lambda: SizeBin(name="a", min_side_px=3, max_side_px=3), r"max_side_px: got 3, allowed: above min_side_px"),
        (lambda: EvaluatorSettings(batch_size=0), r"batch_size: got 0"),
        (lambda: EvaluatorSettings(num_images=-1), r"num_images: got -1"),
        (lambda: EvaluatorSettings(wanted_precision=90), r"wanted_precision: got 90"),
    ],
)
def test_invalid_settings_are_rejected(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_complete_override_is_accepted():
    assert Override(**GOOD).until == "2026-12-31"
