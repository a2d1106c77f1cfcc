"""CenterNet (arXiv:1904.07850)."""
