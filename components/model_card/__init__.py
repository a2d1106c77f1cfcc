"""The model card: what a model is, what it was made of and how good it is, for people and for machines."""
