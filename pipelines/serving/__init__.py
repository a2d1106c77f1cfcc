"""An HTTP server to try a model, with TensorFlow Serving's REST API and a web page. Not for production."""
