"""A fast fake of training, and data for it."""
