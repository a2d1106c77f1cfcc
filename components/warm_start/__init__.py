"""The resolver that finds the model that training starts from."""
