"""Export a trained detector (SavedModel, TensorFlow Lite, ONNX)."""
