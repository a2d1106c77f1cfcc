"""The configuration tree of a detector and its training."""
