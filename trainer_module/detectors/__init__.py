"""Detector families behind one protocol; each family has a folder of its own."""
