"""From a backbone's feature maps to the levels that the heads look at."""
