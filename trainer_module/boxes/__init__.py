"""Boxes: geometry and formats, anchors, matching, box coding, non-maximum suppression."""
