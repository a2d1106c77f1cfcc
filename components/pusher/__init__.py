"""Push models into a folder of versions: copy, verify, rename."""
