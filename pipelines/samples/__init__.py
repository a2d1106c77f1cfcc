"""Sample run files, and the data set of the demo."""
