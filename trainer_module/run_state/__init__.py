"""The state that a training run keeps in its folder."""
