"""Assembly: the DAG, the runners, the command line, sample run files."""
