"""DatasetValidator: a component that checks the boxes, classes and splits of the ingested examples."""
