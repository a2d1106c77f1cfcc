"""Contracts between the packages: settings, formats and names. Uses the standard library, numpy and PyYAML."""
