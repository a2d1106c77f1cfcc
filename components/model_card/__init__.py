"""Write the model card: purpose, data, training, quality and limits of a model, for people and for programs."""
