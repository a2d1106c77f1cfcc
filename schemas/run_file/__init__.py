"""The run file: the sections that it adds to the configuration of a detector, and its reader."""
