"""Published detectors as configurations."""
