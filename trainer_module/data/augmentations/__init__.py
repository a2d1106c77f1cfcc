"""Random changes of training images and their ground truth. Every function is deterministic in its seed (int [2])."""
