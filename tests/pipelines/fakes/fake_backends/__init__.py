"""Servers on this machine that speak the APIs of Kubeflow Pipelines and Vertex AI with their real generated classes."""
