"""Detection of objects in image files, and the score threshold that a model suggests."""
