"""Local servers with the APIs of Kubeflow Pipelines and Vertex AI, built on the generated classes of the clients."""
