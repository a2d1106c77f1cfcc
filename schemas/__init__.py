"""What crosses a boundary: contracts between components. Standard library, numpy, PyYAML; no TensorFlow."""
