"""What our HTML pages share: frame, macros, formats, charts, sortable tables. No TensorFlow, no TFX, no Beam."""
