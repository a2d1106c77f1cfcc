"""The reliability matrix: which fault is tested in which stage of the pipeline."""
