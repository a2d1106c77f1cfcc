"""What a backend says no with."""


class JobRefused(Exception):
    """The backend would not take the job."""


class TaskRefused(Exception):
    """The backend's own work on a task fails while the job runs; the task has failed then."""
