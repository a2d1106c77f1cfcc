"""Run exported models: one protocol, and a module for each runtime."""
