"""Decide whether to retrain, and record finished training runs."""
