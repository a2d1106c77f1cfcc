"""A training that takes no time, data to train on, and a server that keeps messages."""
