"""Read and restore weights of any origin."""
