"""Checks of `detloom doctor` and `image-check`: problems that stop a run or a container."""
