"""Trace the origin of a pushed model in ML Metadata, the push record and the artifacts (`detloom lineage`)."""
