"""The twelve COCO numbers by the names that the field uses (https://cocodataset.org/#detection-eval)."""

METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
