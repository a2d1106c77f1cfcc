"""Single-shot detectors with anchors: SSD, RetinaNet, EfficientDet."""
