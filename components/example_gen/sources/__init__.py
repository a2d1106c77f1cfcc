"""Readers of annotation formats: no TFX, no Beam, no TensorFlow."""
