"""The resolver that finds the data report that a span's data are compared with."""
