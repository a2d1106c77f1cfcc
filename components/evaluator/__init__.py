"""DetectionEvaluator: the exported model over one split, COCO metrics, comparison with the baseline, blessing."""
