"""TFX components. Each folder: component.py, executor.py, and the logic in TFX-free files."""
