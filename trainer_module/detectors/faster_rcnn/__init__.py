"""Faster R-CNN (arXiv:1506.01497)."""
