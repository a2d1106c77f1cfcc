"""The pipeline as TFX nodes, and the fingerprints that belong to their cache keys."""
