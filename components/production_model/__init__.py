"""The node that finds the model in production where the backend has no resolver."""
