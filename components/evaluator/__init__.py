"""DetectionEvaluator: evaluate an exported model on one split, compare it with the baseline, decide on the blessing."""
