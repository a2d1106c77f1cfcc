"""Files of an evaluation: JSON for programs, one HTML page for people, artifacts for user interfaces."""
