"""Weights from elsewhere: reading, naming and restoring them."""
