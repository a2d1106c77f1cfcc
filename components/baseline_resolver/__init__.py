"""The resolver that finds the model a candidate has to be compared with."""
