"""The command of DetectionExampleGen's tasks: python -m detloom.pipelines.container.example_gen_entrypoint.

Like `entrypoint.py`, but the driver runs before the executor; with --driver it runs alone. It is a module of its own,
so that a change of the ingestion changes the command, and with it the cache key, of no other node.
"""

import sys
from typing import TYPE_CHECKING

from detloom.pipelines.container.entrypoint import main
from detloom.pipelines.container.task_storage import TaskStorage

if TYPE_CHECKING:
    from detloom.pipelines.container.run_node import Task


def run_example_gen(task: "Task", storage: TaskStorage) -> None:
    """Run the driver and the executor, or the driver alone."""
    from detloom.pipelines.container.example_gen_driver import run_driver_task, with_driver
    from detloom.pipelines.container.run_node import run_node

    if task.is_driver:
        run_driver_task(task, storage)
    else:
        run_node(task, storage, with_driver)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], run_example_gen))
