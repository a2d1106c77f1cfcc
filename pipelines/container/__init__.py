"""The code that runs in a task's container on Kubeflow Pipelines and Vertex AI."""
