"""Export a trained detector (SavedModel, TensorFlow Lite, ONNX), and run what was exported."""
