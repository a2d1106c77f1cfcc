"""What a training step or a model costs on a GPU or a TPU, found without one."""
