"""Names and rules that components share: feature keys, detections, label map, metrics, rejects, errors."""
