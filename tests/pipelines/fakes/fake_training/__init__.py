"""A fast fake of training, data for it, and a server that stores notifications."""
