"""Keras layers from which networks are built."""
