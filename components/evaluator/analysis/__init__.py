"""Analyses beyond the twelve COCO metrics; pure numpy: arrays in, frozen values out."""
