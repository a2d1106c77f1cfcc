"""What crosses a boundary: contracts between components. Standard library, numpy and PyYAML only."""
