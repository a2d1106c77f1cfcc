"""Kubernetes manifests that run one `detloom train` on several machines (`detloom manifest`)."""
