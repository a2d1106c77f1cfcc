"""Read, check and override configurations; no configuration is defined here."""
