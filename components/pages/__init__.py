"""Shared parts of all HTML pages: frame, macros, formats, charts, sortable tables. No TensorFlow, TFX or Beam."""
