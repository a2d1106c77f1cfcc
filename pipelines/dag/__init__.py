"""The pipeline as TFX nodes."""
