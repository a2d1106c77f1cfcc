"""What a task's container runs on Kubeflow Pipelines and on Vertex AI."""
