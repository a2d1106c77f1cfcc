"""Hashes of images, and the search for images that look the same."""
