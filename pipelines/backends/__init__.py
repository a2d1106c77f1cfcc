"""Kubeflow Pipelines and Vertex AI: submitting compiled pipelines, looking at runs, schedules."""
