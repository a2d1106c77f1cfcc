"""Send messages about pipeline runs to a webhook and by mail."""
