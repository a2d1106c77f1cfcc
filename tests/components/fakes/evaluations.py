"""Small evaluations for the tests of the report, without TensorFlow."""

import datetime

import numpy as np

from detloom.components.evaluator.baseline_comparison import compare
from detloom.components.evaluator.blessing import decide
from detloom.components.evaluator.evaluation_result import EvaluationResult, ReportImage, ReportObject
from detloom.components.evaluator.gates import GateEvidence, Latency, ModelCosts
from detloom.components.evaluator.measurements import Split, measure
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices, ObjectSlices, SizeBin
from detloom.schemas.run_file.gates import BaselineGate, Gates, MetricFloor
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

HOSTILE = "<b>dog</b>"
IMAGE_HW = (200, 400)
LEFT, RIGHT = (0.1, 0.05, 0.9, 0.45), (0.2, 0.55, 0.8, 0.95)  # boxes of 160 x 160 and 120 x 160 pixels
TODAY = datetime.date(2026, 1, 1)
LATENCY = Latency(median_ms=41.26, p95_ms=55.0, num_images=50)
OPTIONS = EvaluatorSettings(
    image_slices=(ImageSlices(feature="image/camera"),),
    object_slices=(ObjectSlices(by="side_px", edges=(150,)),),
    sizes=(SizeBin(name="wee", max_side_px=16),),
    min_slice_count=2,
)


def make_truth(image_id, boxes=(), class_ids=()):
    boxes = np.reshape(boxes, (-1, 4)).astype(float)
    return ImageGroundTruth(image_id, IMAGE_HW, boxes, np.array(class_ids, int), np.zeros(len(boxes), bool))


def make_found(image_id, boxes=(), class_ids=(), scores=()):
    boxes = np.reshape(boxes, (-1, 4)).astype(float)
    return ImageDetections(image_id, boxes, np.array(scores, float), np.array(class_ids, int))


def make_split(names=("cat", HOSTILE)):
    """Make a split of three images: a cat and a dog, a dog, no object."""
    second = min(2, len(names))
    truth = [make_truth(1, [LEFT, RIGHT], [1, second]), make_truth(2, [LEFT], [second]), make_truth(3)]
    features = [{"image/camera": ("north",)}, {"image/camera": ("north",)}, {"image/camera": ("south",)}]
    return Split(ground_truth=truth, features=features, label_map=LabelMap.from_names(names))


def make_models(num_classes=2):
    """Make detections: the candidate detects all objects; the baseline confuses a dog with a cat and misses one."""
    second = min(2, num_classes)
    candidate = [
        make_found(1, [LEFT, RIGHT], [1, second], [0.9, 0.8]),
        make_found(2, [LEFT], [second], [0.7]),
        make_found(3, [RIGHT], [1], [0.2]),
    ]
    return candidate, [make_found(1, [LEFT, RIGHT], [1, 1], [0.9, 0.6]), make_found(2), make_found(3)]


def make_evaluation(
    names=("cat", HOSTILE), has_baseline=True, split=None, models=None, options=OPTIONS, gates=None, **more
):
    split, models = split or make_split(names), models or make_models(len(names))
    gates = gates or Gates(floors=(MetricFloor(metric="AP50", min=0.5),))
    candidate = measure(split, models[0], options)
    baseline = measure(split, models[1], options) if has_baseline else None
    comparison = compare(candidate, baseline, split.label_map, BaselineGate(num_resamples=100))
    costs = ModelCosts(latency=LATENCY, model_bytes=3 * 2**20)
    evidence = GateEvidence(candidate=candidate, baseline=baseline, ap_change=comparison.ap_change, costs=costs)
    values = {
        "split": split,
        "file_names": [f"{image.image_id}.jpg" for image in split.ground_truth],
        "detections": models[0],
        "candidate": candidate,
        "baseline": baseline,
        "baseline_detections": models[1] if has_baseline else (),
        "comparison": comparison,
        "decision": decide(evidence, gates, TODAY),
        "candidate_costs": costs,
        "lines": [("Split", "test: 3 images, 3 boxes")],
    }
    return EvaluationResult(**{**values, **more})


def make_object(layer="candidate", outcome="true", steps=(90,), label="cat 0.90", **changes):
    box = (20.0, 20.0, 160.0, 160.0)
    return ReportObject(layer=layer, outcome=outcome, box_xywh_px=box, label=label, steps=steps, **changes)


def texts_of(row):
    return [cell["text"] for cell in row]


def make_image(kind="first", size=4, **changes):
    values = {
        "name": "a.jpg",
        "text": "objects: 2, detections: 1",
        "uri": "data:image/jpeg;base64," + "A" * size,
        "size_wh": (400, 200),
        "objects": (),
    }
    return ReportImage(kind=kind, **{**values, **changes})
