"""Whether there is reason to train, and what the last finished training read."""
