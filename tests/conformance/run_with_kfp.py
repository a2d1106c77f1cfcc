"""Runs a compiled job with the KFP SDK's own local runner: run_with_kfp.py JOB ROOT, by a Python that has kfp 2.17.

That runner is not the cluster's launcher, and knows less (seen in kfp 2.17.0, kfp/local):
    executor_input_utils.py      names of components must begin with `comp-`; input artifacts come without their types
    docker_task_handler.py       mounts ROOT and nothing else, whatever the platform document says
    enhanced_dag_orchestrator.py conditions on an artifact's metadata are false, with a warning: no job with `retrain`
"""

import sys

from kfp import components, local

_CONFINED = {"network_mode": "none", "read_only": True, "tmpfs": {"/tmp": ""}}


def main(job: str, root: str) -> None:
    """Raises whatever the runner does when a task fails."""
    local.init(runner=local.DockerRunner(**_CONFINED), pipeline_root=root, raise_on_error=True)
    components.load_component_from_file(job)()


if __name__ == "__main__":
    main(*sys.argv[1:])
