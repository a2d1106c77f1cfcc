"""Costs of a training step or a model on a GPU or a TPU, found without one."""
