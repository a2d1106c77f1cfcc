"""Run the pipeline on this machine."""
