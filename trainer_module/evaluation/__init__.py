"""COCO metrics of a detector in memory."""
