"""Errors of a backend."""


class JobRefused(Exception):
    """The backend refuses the job at submission."""


class TaskRefused(Exception):
    """The backend's own work on a task fails during the run, and with it the task."""
