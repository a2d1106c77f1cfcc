"""COCO metrics of boxes with the matches and curves of pycocotools, the reference for our own."""

import contextlib
import io
from unittest import mock

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detloom.trainer_module.evaluation import mask_and_keypoint_curves
from detloom.trainer_module.evaluation.coco_images import format_coco_ground_truth, format_coco_results
from detloom.trainer_module.evaluation.coco_metrics import summarize_coco_datasets


def reference_metrics(ground_truth, detections, label_map, sizes=()):
    """Return what `compute_coco_metrics` computes for boxes."""
    truth = sorted(ground_truth, key=lambda image: image.image_id)
    found = sorted(detections, key=lambda image: image.image_id)
    dataset = format_coco_ground_truth(truth, label_map)
    results = format_coco_results(found, {image.image_id: image.image_hw for image in truth})
    with mock.patch.object(mask_and_keypoint_curves, "_curves_of_faster_coco_eval", _curves_of_pycocotools):
        return summarize_coco_datasets(dataset, results, label_map, iou_type="bbox", sizes=sizes)


def _curves_of_pycocotools(truth, found, iou_type, sizes, sigmas):
    def index(dataset):
        coco = COCO()  # loadRes rejects an empty list, so detections are indexed like ground truth
        coco.dataset = dataset
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(index(truth), index(found), iouType=iou_type)
        mask_and_keypoint_curves.add_parameters(evaluation.params, sizes, sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"], evaluation.eval["recall"]
