"""Report the result of a run by webhook and mail."""
