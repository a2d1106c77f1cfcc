"""Statistics of the examples, collected in one Beam pass; mergeable and of bounded size."""
