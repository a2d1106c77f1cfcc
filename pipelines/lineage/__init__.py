"""`detloom lineage`: what a pushed model came from, read from ML Metadata, the push record and the artifacts."""
