"""File formats and file operations that several modules use."""
