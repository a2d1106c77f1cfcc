"""An HTTP server for trying a model by hand, with TensorFlow Serving's REST contract and a page. Not for production."""
