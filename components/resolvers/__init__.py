"""Resolvers: the nodes that select the baseline, the warm-start model, the previous report and the production model."""
