"""DatasetValidator: checks of boxes, classes and splits on the ingested examples, and a gate."""
