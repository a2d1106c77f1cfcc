"""What crosses a boundary: contracts between components. Standard library and numpy only."""
