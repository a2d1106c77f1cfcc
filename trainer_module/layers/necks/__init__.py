"""Necks: from a backbone's feature maps to the feature maps that the heads use."""
